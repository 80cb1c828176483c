// Training steps on the fake device end with the CPU's bits.
#include <torch/csrc/autograd/custom_function.h>

#include "unit/fake/fixture.h"

namespace dtrain::testing::fake::training_test {
namespace {

constexpr std::int64_t kVocabulary = 61;
constexpr std::int64_t kWidth = 48;
constexpr std::int64_t kTokens = 40;

// Products of each token with those before it.
struct StrictGram : torch::autograd::Function<StrictGram> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return at::mm(x, x.t()).tril_(-1);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const at::Tensor lower = gradients[0].tril(-1);
    return {at::mm(lower + lower.t(), context->get_saved_variables()[0])};
  }
};

// A small model whose weights are views into one flat buffer, as are their gradients.
class Trainee {
 public:
  Trainee(const c10::Device& device, at::ScalarType dtype) {
    const std::int64_t size = 2 * kVocabulary * kWidth + kWidth * kWidth;
    flat_ = at::arange(size, at::kFloat)
                .mul(0.61803)
                .sin()
                .mul(0.2)
                .to(dtype)
                .to(device, /*non_blocking=*/true);
    gradients_ = at::zeros_like(flat_);
    first_moment_ = at::zeros_like(flat_);
    second_moment_ = at::zeros_like(flat_);
    step_ = at::zeros({}, flat_.options().dtype(at::kFloat));
    embedding_ = view({kVocabulary, kWidth});
    weight_ = view({kWidth, kWidth});
    head_ = view({kWidth, kVocabulary});
  }

  at::Tensor step(const at::Tensor& ids) {
    const at::Tensor x = layer_norm(at::embedding(embedding_, ids));
    const at::Tensor hidden = at::mm(x, weight_).relu_();
    const at::Tensor mixed = layer_norm(at::mm(StrictGram::apply(hidden), x) + x);
    const at::Tensor loss = at::cross_entropy_loss(at::mm(mixed, head_).to(at::kFloat), ids);
    gradients_.zero_();
    torch::autograd::backward({loss});
    const at::NoGradGuard no_grad;
    step_.add_(1);
    at::_fused_adamw_({flat_}, {gradients_}, {first_moment_}, {second_moment_}, {}, {step_}, 1e-2,
                      0.9, 0.95, 0.1, 1e-8, false, false);
    return loss.detach();
  }
  [[nodiscard]] std::vector<at::Tensor> state() const {
    return {flat_, gradients_, first_moment_, second_moment_};
  }

 private:
  at::Tensor view(at::IntArrayRef sizes) {
    const std::int64_t end = used_ + c10::multiply_integers(sizes);
    at::Tensor made = flat_.slice(0, used_, end).view(sizes).detach().requires_grad_();
    made.mutable_grad() = gradients_.slice(0, used_, end).view(sizes);
    used_ = end;
    return made;
  }

  at::Tensor flat_, gradients_, first_moment_, second_moment_, step_;
  at::Tensor embedding_, weight_, head_;
  std::int64_t used_ = 0;
};

std::vector<at::Tensor> train(const c10::Device& device, at::ScalarType dtype) {
  Trainee trainee(device, dtype);
  std::vector<at::Tensor> results;
  for (int i = 0; i < 3; ++i) {
    const at::Tensor ids = at::arange(i, kTokens + i).mul(17).remainder(kVocabulary);
    results.push_back(trainee.step(ids.to(device, /*non_blocking=*/true)));
  }
  for (const at::Tensor& t : trainee.state()) results.push_back(t);
  return results;
}

TEST_CASE("Three steps end with the CPU's bits, without a wait of the host") {
  const auto dtype = GENERATE(at::kFloat, at::kBFloat16);
  const Fixture fixture(GENERATE(Execution::prompt, Execution::late), GENERATE(1U, 2U));
  const std::vector<at::Tensor> expected = train(c10::Device(c10::kCPU), dtype);
  const std::vector<at::Tensor> actual = train(kDevice, dtype);
  CHECK(counters().host_waits.total() == 0);
  for (std::size_t i = 0; i < expected.size(); ++i) expect_equal(actual[i].cpu(), expected[i]);
}

}  // namespace
}  // namespace dtrain::testing::fake::training_test
