"""Whole plans of the CUDA engine, run on the CPU."""

from tests.engines.cuda.plan_checks import *  # noqa: F403  # the test bodies; the GPU's tests have them too
