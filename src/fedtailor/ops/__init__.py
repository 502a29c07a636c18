"""Operations with rules of their own for stacks and derivatives; the only room with C++ and Triton for models."""
