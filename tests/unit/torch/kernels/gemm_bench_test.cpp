// Measures the matrix products of a level for scripts/bench.sh cpu. Prints one line per product:
// name and GFLOP/s on one thread.
#include <fmt/format.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <vector>

#include "dtrain/kernels/gemm.h"

namespace dtrain::kernels::gemm_bench_test {
namespace {

struct Shape {
  const char* name;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t depth;
  bool transposes_a = false;
  bool transposes_b = false;
};

// The best of several repetitions, since other processes can only slow it down.
template <typename T>
double gflops(const Shape& shape) {
  using Sum = typename SumOf<T>::Type;
  const auto size = [](std::int64_t a, std::int64_t b) { return static_cast<std::size_t>(a * b); };
  std::vector<T> a(size(shape.rows, shape.depth), T(0.5F));
  std::vector<T> b(size(shape.depth, shape.columns), T(0.25F));
  std::vector<Sum> c(size(shape.rows, shape.columns));
  const Matrix<const T> left = shape.transposes_a
                                   ? Matrix<const T>{a.data(), shape.depth, shape.rows}.transposed()
                                   : Matrix<const T>{a.data(), shape.rows, shape.depth};
  const Matrix<const T> right =
      shape.transposes_b ? Matrix<const T>{b.data(), shape.columns, shape.depth}.transposed()
                         : Matrix<const T>{b.data(), shape.depth, shape.columns};
  const Matrix<Sum> out{c.data(), shape.rows, shape.columns};
  Gemm<T> product;
  constexpr int kBlocks = 20;
  constexpr int kProducts = 10;
  double best = 0;
  for (int block = 0; block < kBlocks; ++block) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kProducts; ++i) product.write(left, right, out);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    const auto flops =
        static_cast<double>(2 * kProducts * shape.rows * shape.columns * shape.depth);
    best = std::max(best, flops / taken.count() / 1e9);
  }
  return best;
}

TEST_CASE("Rates of products", "[.bench-products]") {
  const Shape shapes[] = {
      {.name = "small: x encoderT",
       .rows = 256,
       .columns = 128,
       .depth = 128,
       .transposes_b = true},
      {.name = "small: S q", .rows = 256, .columns = 128, .depth = 256},
      {.name = "small: gated decoder", .rows = 256, .columns = 128, .depth = 128},
      {.name = "small: gatedT d", .rows = 128, .columns = 128, .depth = 256, .transposes_a = true},
      {.name = "25m: x encoderT", .rows = 256, .columns = 128, .depth = 256, .transposes_b = true},
      {.name = "25m: gatedT d", .rows = 128, .columns = 256, .depth = 256, .transposes_a = true},
  };
  for (const Shape& shape : shapes) {
    fmt::print("{}, float32\t{:.1f}\n", shape.name, gflops<float>(shape));
    fmt::print("{}, bfloat16\t{:.1f}\n", shape.name, gflops<c10::BFloat16>(shape));
  }
}

}  // namespace
}  // namespace dtrain::kernels::gemm_bench_test
