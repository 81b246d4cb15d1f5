# SPDX-License-Identifier: Apache-2.0
"""One module for each framework. None is imported here: each needs its framework, which cay does not depend on."""
