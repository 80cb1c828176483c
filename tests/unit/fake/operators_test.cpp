// The fake device's operators have the CPU's bits, whenever they run.
#include <thread>

#include "support/messages.h"
#include "unit/fake/fixture.h"

namespace dtrain::testing::fake::operators_test {
namespace {

at::Tensor example(at::IntArrayRef sizes, at::ScalarType dtype) {
  const std::int64_t elements = c10::multiply_integers(sizes);
  return at::arange(elements, at::kDouble).mul(0.61803).sin().view(sizes).to(dtype);
}

// Computes on the CPU and on the fake device; the results must have the same bits.
void expect_same_bits(const std::function<at::Tensor(const c10::Device&)>& compute) {
  expect_equal(compute(kDevice).cpu(), compute(c10::Device(c10::kCPU)));
}

TEST_CASE("Operators have the CPU's bits") {
  const Fixture fixture(GENERATE(Execution::prompt, Execution::late));
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16, at::kDouble);
  const auto on = [&](const c10::Device& device, at::IntArrayRef sizes) {
    return example(sizes, dtype).to(device);
  };
  SECTION("add, with numbers of either side") {
    expect_same_bits([&](const c10::Device& d) { return (on(d, {3, 5}) + 1.5) * 0.1 - 2; });
    expect_same_bits([&](const c10::Device& d) {
      std::vector<at::Tensor> products;
      for (const at::Tensor& element : on(d, {50}).unbind()) products.push_back(element * 0.1);
      return at::stack(products);
    });
  }
  SECTION("mm") {
    expect_same_bits([&](const c10::Device& d) { return at::mm(on(d, {33, 48}), on(d, {48, 7})); });
  }
  SECTION("layer_norm") {
    expect_same_bits([&](const c10::Device& d) {
      return at::layer_norm(on(d, {33, 48}), {48}, on(d, {48}), on(d, {48}), 1e-5);
    });
  }
  SECTION("embedding and index") {
    expect_same_bits([&](const c10::Device& d) {
      const at::Tensor ids = at::arange(12).mul(17).remainder(9).to(d);
      return at::embedding(on(d, {9, 5}), ids) + on(d, {9, 5}).index({ids});
    });
  }
  SECTION("softmax, cumsum, cat, topk, masks") {
    expect_same_bits([&](const c10::Device& d) {
      const at::Tensor x = on(d, {6, 8});
      const at::Tensor top = std::get<0>(at::cat({at::softmax(x, -1), x.cumsum(1)}).topk(3));
      return top.masked_fill(top > 0.5, 1);
    });
  }
  SECTION("results of unknown shape") {
    expect_same_bits([&](const c10::Device& d) { return on(d, {6, 8}).gt(0).nonzero(); });
    expect_same_bits([&](const c10::Device& d) {
      return on(d, {6, 8}).index({on(d, {6, 8}).gt(0)});
    });
  }
}

TEST_CASE("Outputs and views have the CPU's bits") {
  const Fixture fixture(GENERATE(Execution::prompt, Execution::late));
  const auto on = [](const c10::Device& device, at::IntArrayRef sizes) {
    return example(sizes, at::kFloat).to(device);
  };
  SECTION("outputs that are resized") {
    expect_same_bits([&](const c10::Device& d) {
      at::Tensor sum = at::empty({0}, on(d, {1}).options());
      return at::sum_out(sum, on(d, {3, 5}), at::IntArrayRef{0});
    });
    expect_same_bits([&](const c10::Device& d) {
      at::Tensor grown = on(d, {3});
      return grown.resize_({4, 5}).slice(0, 0, 1).slice(1, 0, 3);
    });
  }
  SECTION("views") {
    expect_same_bits([&](const c10::Device& d) {
      at::Tensor x = on(d, {6, 8});
      x.unfold(1, 2, 3).add_(1);
      x.select(0, 1).copy_(x.t().slice(1, 2, 3).squeeze(1));
      return x.view({-1}).as_strided({4, 4}, {1, 5});
    });
  }
  SECTION("complex numbers, conjugated and negated") {
    expect_same_bits([&](const c10::Device& d) {
      const at::Tensor turns = at::view_as_complex(on(d, {6, 4, 2}));
      const at::Tensor x = at::view_as_complex(on(d, {4, 2}));
      return at::view_as_real((x * turns.conj()).add(at::imag(turns.conj()))).clone();
    });
    expect_same_bits([&](const c10::Device& d) {
      return at::view_as_complex(on(d, {4, 2})).conj().to(at::kComplexDouble).resolve_conj();
    });
  }
  SECTION("fused AdamW on slices of a flat buffer") {
    expect_same_bits([&](const c10::Device& d) {
      const at::Tensor flat = example({4, 640}, at::kFloat).abs().to(d);
      const at::Tensor step = at::ones({}, at::TensorOptions(d).dtype(at::kFloat));
      const auto part = [&](std::int64_t row) { return flat.select(0, row).slice(0, 64, 512); };
      at::_fused_adamw_({part(0)}, {part(1)}, {part(2)}, {part(3)}, {}, {step}, 1e-2, 0.9, 0.95,
                        0.1, 1e-8, false, false);
      return flat;
    });
  }
}

TEST_CASE("Backward runs on the calling thread and has the CPU's bits") {
  const Fixture fixture(GENERATE(Execution::prompt, Execution::late));
  const at::ScalarType dtype = GENERATE(at::kFloat, at::kBFloat16);
  std::vector<std::thread::id> threads;
  expect_same_bits([&](const c10::Device& d) {
    at::Tensor weight = example({9, 16}, dtype).to(d).requires_grad_();
    const at::Tensor ids = at::arange(12).mul(17).remainder(9).to(d);
    const at::Tensor x = layer_norm(at::embedding(weight, ids));
    x.register_hook([&](const at::Tensor&) { threads.push_back(std::this_thread::get_id()); });
    const at::Tensor logits = at::mm(x.relu(), weight.t()).to(at::kFloat);
    torch::autograd::backward({at::cross_entropy_loss(logits, ids)});
    return weight.grad();
  });
  CHECK(threads == std::vector<std::thread::id>(2, std::this_thread::get_id()));
}

TEST_CASE("A tensor of the host among the device's is refused") {
  const Fixture fixture;
  const at::Tensor x = at::ones({2, 2}, on_device());
  CHECK_THROWS_WITH(at::mm(x, at::ones({2, 2})), Names("mm", "host tensor", "[2, 2]"));
  CHECK_THROWS_WITH(at::mm(x, at::ones({2, 2}, on_device(1))), Catch::Contains("same device"));
  CHECK_THROWS_WITH(at::ones({2}, at::TensorOptions("fake:8")), Names("fake:8", "fake devices"));
}

TEST_CASE("Fresh memory holds NaN") {
  const Fixture fixture;
  CHECK(at::empty({1000}, on_device()).isnan().all().item<bool>());
}

}  // namespace
}  // namespace dtrain::testing::fake::operators_test
