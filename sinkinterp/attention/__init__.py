"""One attention call: its scores, its pattern, and what can be known of the pattern without keeping it."""

from .call import *
from .kernels import *
from .maps import *
from .masks import *
from .shapes import *
from .sites import *
from .slots import *
