import sys

from bench.attacks.run import main

sys.exit(main())
