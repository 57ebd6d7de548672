from __future__ import annotations

import time

import pytest

from reviewer.tools.symbols import Role, role_finder

DEFINITIONS = [
    ("a.py", "def f(x):"),
    ("a.py", "    async def f(self):"),
    ("a.py", "class f:"),
    ("a.py", "class f(Base, metaclass=M):"),
    ("a.py", "f = 3"),
    ("a.pyi", "f: dict[str, int] = {}"),
    ("a.h", "#define f(x) ((x) + 1)"),
    ("a.h", "  #  define f"),
    ("a.h", "struct f {"),
    ("a.h", "class f final : public Base {"),
    ("a.h", "class f : public Base {"),
    ("a.h", "struct __align__(16) f {"),
    ("a.h", "class EXPORT f"),
    ("a.h", "enum class f : int {"),
    ("a.h", "template <> struct f<int> {"),
    ("a.h", "namespace f {"),
    ("a.h", "using f = std::vector<int>;"),
    ("a.h", "typedef struct g f;"),
    ("a.h", "} f;"),
    ("a.cc", "int f(int a) {"),
    ("a.cc", "static inline std::vector<int>& f(const T& a,"),
    ("a.cc", "void Cache::f() const {"),
    ("a.cc", "Cache::f(int a)"),
    ("a.cc", "f(int a)"),
    ("a.cc", "template <typename T> T* f(T* x) {"),
    ("a.cc", "[[nodiscard]] int f(int a) {"),
    ("a.cu", "__global__ void f(float* x) {"),
    ("a.cu", "__global__ void __launch_bounds__(256, 2) f("),
    ("a.cu", "  __device__ __forceinline__ float f(float x) { return x; }"),
    ("a.cu", "template <int N> __global__ void f(float* x)"),
    ("a.rs", "pub fn f(x: i32) -> i32 {"),
    ("a.go", "func f() {"),
    ("a.ts", "export const f = () => 1"),
]

DECLARATIONS = [
    ("a.h", "struct f;"),
    ("a.h", "int f(int a);"),
    ("a.cu", "__global__ void f(float* x);"),
]

USES = [
    ("a.py", "    f(x)"),
    ("a.py", "x = f(1)"),
    ("a.py", "f == 3"),
    ("a.py", "    f = local"),
    ("a.py", "# def of f"),
    ("a.py", "from a import f"),
    ("a.cc", "  f(x);"),
    ("a.cc", "  return f(x);"),
    ("a.cc", "  else f(x);"),
    ("a.cc", "  int y = f(x);"),
    ("a.cc", "  if (f(x)) {"),
    ("a.cc", "  while (ok) f(x);"),
    ("a.cc", "  std::f(x);"),
    ("a.cc", "  object.f(x);"),
    ("a.cc", "  object->f(x);"),
    ("a.cc", "  std::cout << f(x);"),
    ("a.cc", "    : f(x),"),
    ("a.cc", "    , f(x)"),
    ("a.cc", "  g(a, f(x));"),
    ("a.cc", "  (void)f(x);"),
    ("a.cc", "  throw f(x);"),
    ("a.cc", "  auto p = new f(x);"),
    ("a.cc", "// class f { is gone"),
    ("a.cc", " * void f(int) does it"),
    ("a.cc", "  struct f* next;"),
    ("a.cc", "  const f& other"),
    ("a.cu", "  f<<<grid, block>>>(x);"),
    ("a.cu", "  f<float><<<grid, block>>>(x);"),
    ("a.md", "Call f() first."),
    ("a.go", "  f()"),
]


@pytest.mark.parametrize(
    ("path", "line", "role"),
    [
        (*case, role)
        for cases, role in (
            (DEFINITIONS, Role.DEFINITION),
            (DECLARATIONS, Role.DECLARATION),
            (USES, Role.USE),
        )
        for case in cases
    ],
)
def test_a_line_defines_declares_or_uses_a_name(path: str, line: str, role: Role) -> None:
    assert role_finder("f")(path, line) is role


def test_a_name_is_a_whole_word() -> None:
    role = role_finder("f")
    assert role("a.py", "def ff(x):") is Role.USE
    assert role("a.cc", "int off(int f) {") is Role.USE


@pytest.mark.parametrize(
    "line",
    ["struct " * 60 + "f", "struct f" + "(" * 390, "a " * 200 + "f", "std::" * 80 + "f(", "<" * 390 + " f("],
)
def test_no_line_takes_long(line: str) -> None:
    role = role_finder("f")
    began = time.process_time()
    for _ in range(10):
        role("a.cc", line[:400])
    # Some 10 ms; an expression that backtracks without bound needs hours.
    assert time.process_time() - began < 2
