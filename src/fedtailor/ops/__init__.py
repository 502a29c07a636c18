"""Operations with their own rules for `vmap` and derivatives, in part in C++ and Triton.

Also here is what operations depend on: CPU capabilities, building of C++, copies to devices.
"""
