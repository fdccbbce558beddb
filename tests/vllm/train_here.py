"""`train_here.py KEYS`: train with keyword arguments given as JSON; the last line printed is the metrics."""

import json
import sys

if __name__ == "__main__":
    import assay

    print(json.dumps(assay.train(**json.loads(sys.argv[1])).metrics()))
