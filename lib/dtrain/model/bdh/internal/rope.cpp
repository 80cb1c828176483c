#include "dtrain/model/bdh/internal/rope.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <cmath>
#include <numbers>

#include "dtrain/base/elementary.h"
#include "dtrain/base/error.h"
#include "dtrain/device/operator.h"
#include "dtrain/model/bdh/rope_element.h"

namespace dtrain::model::bdh {
namespace {

// Rotates the pairs of one position.
template <typename scalar_t>
void rotate_row(const scalar_t* in, scalar_t* out, std::int64_t pairs, const float* table,
                float direction) {
  for (std::int64_t k = 0; k < pairs; ++k) {
    rotate_pair(in + 2 * k, out + 2 * k, table + 2 * k, direction);
  }
}

at::Tensor rotate_on_cpu(const at::Tensor& v, const at::Tensor& table, double direction) {
  const std::int64_t neurons = v.size(-1);
  const std::int64_t positions = v.size(-2);
  at::Tensor out = at::empty_like(v);
  AT_DISPATCH_REDUCED_FLOATING_TYPES(v.scalar_type(), "rope_rotate", [&] {
    const auto* in_data = v.const_data_ptr<scalar_t>();
    auto* out_data = out.mutable_data_ptr<scalar_t>();
    const auto* rotations = table.const_data_ptr<float>();
    at::parallel_for(0, v.numel() / neurons, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        rotate_row(in_data + row * neurons, out_data + row * neurons, neurons / 2,
                   rotations + row % positions * neurons, static_cast<float>(direction));
      }
    });
  });
  return out;
}

TORCH_LIBRARY_FRAGMENT(dtrain, operators) {
  operators.def("rope_turn(Tensor v, Tensor table, float direction) -> Tensor");
}
TORCH_LIBRARY_IMPL(dtrain, CPU, kernels) { kernels.impl("rope_turn", rotate_on_cpu); }

// v (..., T, N) bfloat16 or float16, table (T, N/2, 2) float32; direction as in rotate_pair.
at::Tensor rotate_low(const at::Tensor& v, const at::Tensor& table, double direction) {
  static const device::Operator<decltype(rotate_on_cpu)> kRotate("dtrain::rope_turn");
  return kRotate(v, table, direction);
}

// A separate function for 16-bit dtypes, which have no complex type; float32 copies of v would be
// the largest tensors of a level.
class LowRotation : public torch::autograd::Function<LowRotation> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& v,
                            const at::Tensor& table) {
    DTRAIN_CHECK(v.is_contiguous());
    ctx->save_for_backward({table});
    return rotate_low(v, table, 1.0);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    return {rotate_low(grads[0].contiguous(), ctx->get_saved_variables()[0], -1.0), at::Tensor()};
  }
};

constexpr auto kFullTurn = static_cast<float>(2 * std::numbers::pi);

// The frequency of the pair that begins with neuron `even`, with the float32 roundings of the
// reference: 1 / 65536^(even/N) / 2pi.
float frequency(std::int64_t even, std::int64_t neurons) {
  const float exponent = static_cast<float>(even) / static_cast<float>(neurons);
  const auto power = static_cast<float>(base::power_of_two(16.0 * static_cast<double>(exponent)));
  return 1.0F / power / kFullTurn;
}

// Does not use ATen's cosine and sine: the bits of their vector library depend on the CPU, and if
// two threads make its first call at once, one of the results can be off by 1.5e-4.
void write_rotation(float position, float turns_per_position, float* out) {
  const float turns = position * turns_per_position;
  const float angle = (turns - std::floor(turns)) * kFullTurn;
  const auto [sine, cosine] = base::sine_cosine(angle);
  out[0] = static_cast<float>(cosine);
  out[1] = static_cast<float>(sine);
}

}  // namespace

at::Tensor rope_frequencies(std::int64_t neurons) {
  const at::Tensor all = at::empty({neurons}, at::TensorOptions().dtype(at::kFloat));
  auto* out = all.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < neurons; ++i) out[i] = frequency(i / 2 * 2, neurons);
  return all;
}

at::Tensor rope_rotations(std::int64_t begin, std::int64_t end, const HeadSlice& neurons,
                          const at::TensorOptions& options) {
  DTRAIN_CHECK(neurons.first % 2 == 0 && neurons.count % 2 == 0 &&
               neurons.first + neurons.count <= neurons.whole);
  const std::int64_t pairs = neurons.count / 2;
  const at::Tensor frequencies = rope_frequencies(neurons.whole);  // (N)
  const auto* of_neuron = frequencies.const_data_ptr<float>() + neurons.first;
  const at::Tensor table =
      at::empty({end - begin, pairs, 2}, at::TensorOptions().dtype(at::kFloat));
  auto* out = table.mutable_data_ptr<float>();
  at::parallel_for(begin, end, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t t = first; t < last; ++t) {
      float* row = out + (t - begin) * neurons.count;
      for (std::int64_t k = 0; k < pairs; ++k) {
        write_rotation(static_cast<float>(t), of_neuron[2 * k], row + 2 * k);
      }
    }
  });
  return table.to(options);
}

at::Tensor rope_rotate(const at::Tensor& v, const at::Tensor& table) {
  if (at::isReducedFloatingType(v.scalar_type())) {
    return LowRotation::apply(v, table.to(at::kFloat).contiguous());
  }
  auto pairs = v.sizes().vec();
  pairs.back() /= 2;
  pairs.push_back(2);
  const at::Tensor rotations = at::view_as_complex(table.to(v.scalar_type()));   // (T, N/2)
  const at::Tensor rotated = at::view_as_complex(v.view(pairs)).mul(rotations);  // (..., T, N/2)
  return at::view_as_real(rotated).view(v.sizes());
}

const at::Tensor& RopeTables::table(std::int64_t length, at::ScalarType precision,
                                    const at::TensorOptions& options) {
  const bool fits = table_.defined() && table_.size(0) == length &&
                    table_.scalar_type() == options.dtype() && table_.device() == options.device();
  if (!fits) table_ = rope_rotations(0, length, neurons_, options.dtype(precision)).to(options);
  return table_;
}

}  // namespace dtrain::model::bdh
