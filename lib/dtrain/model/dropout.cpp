#include "dtrain/model/dropout.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <array>

#include "dtrain/base/error.h"
#include "dtrain/base/philox.h"
#include "dtrain/device/operator.h"
#include "dtrain/model/dropout_element.h"

namespace dtrain::model {
namespace {

// A loop of one width, compiled for each instruction set, since the build itself assumes none.
#define DTRAIN_ALL_CPUS __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))

#define DTRAIN_SELECT(scalar_t)                                                             \
  DTRAIN_ALL_CPUS void select(const std::uint32_t* random, std::int64_t count,              \
                              DropRule<scalar_t> rule, const scalar_t* in, scalar_t* out) { \
    for (std::int64_t i = 0; i < count; ++i) {                                              \
      out[i] = dropped(in[i], is_kept(random[i], rule), rule);                              \
    }                                                                                       \
  }
DTRAIN_SELECT(float)
DTRAIN_SELECT(double)
DTRAIN_SELECT(at::BFloat16)
DTRAIN_SELECT(at::Half)
#undef DTRAIN_SELECT

// One (sample, position) row of one head: `count` neurons from global neuron `first`.
template <typename scalar_t>
void drop_row(const scalar_t* in, scalar_t* out, std::int64_t first, std::int64_t count,
              const DropoutRow& row, base::PhiloxKey key, DropRule<scalar_t> rule) {
  std::array<std::uint32_t, kDropoutBlock> random;
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t neuron = first + done;
    const std::int64_t skip = neuron % kDropoutBlock;
    const std::int64_t take = std::min(kDropoutBlock - skip, count - done);
    random_halves(static_cast<std::uint32_t>(neuron / kDropoutBlock), row, key, random.data());
    select(random.data() + skip, take, rule, in + done, out + done);
    done += take;
  }
}

at::Tensor drop_on_cpu(const at::Tensor& x, double probability, std::int64_t seed,
                       std::int64_t level, const at::Tensor& first_sample,
                       std::int64_t first_neuron) {
  const DropoutRows rows{.samples = x.size(1),
                         .positions = x.size(2),
                         .neurons = x.size(3),
                         .level = level,
                         .first_sample = first_sample.const_data_ptr<std::int64_t>(),
                         .first_neuron = first_neuron};
  const base::PhiloxKey key =
      base::philox_key(static_cast<std::uint64_t>(seed), base::RandomPurpose::dropout);
  at::Tensor out = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "dropout", [&] {
    const auto* in_data = x.const_data_ptr<scalar_t>();
    auto* out_data = out.mutable_data_ptr<scalar_t>();
    const auto rule = drop_rule<scalar_t>(probability);
    at::parallel_for(0, x.numel() / rows.neurons, 16, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const std::int64_t plane = r / rows.positions;  // of a head and a sample
        const DropoutRow row = rows.counters_of(plane % rows.samples, r % rows.positions);
        drop_row(in_data + r * rows.neurons, out_data + r * rows.neurons,
                 rows.first_of(plane / rows.samples), rows.neurons, row, key, rule);
      }
    });
  });
  return out;
}

TORCH_LIBRARY_FRAGMENT(dtrain, operators) {
  operators.def(
      "dropout(Tensor x, float probability, int seed, int level, Tensor first_sample, int "
      "first_neuron) -> Tensor");
}
TORCH_LIBRARY_IMPL(dtrain, CPU, kernels) { kernels.impl("dropout", drop_on_cpu); }

at::Tensor apply_mask(const at::Tensor& x, double probability, const DropoutPlace& place) {
  static const device::Operator<at::Tensor(const at::Tensor&, double, std::int64_t, std::int64_t,
                                           const at::Tensor&, std::int64_t)>
      kDropout("dtrain::dropout");
  return kDropout(x, probability, static_cast<std::int64_t>(place.seed), place.level,
                  place.first_sample, place.first_neuron);
}

class CounterDropout : public torch::autograd::Function<CounterDropout> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            double probability, std::int64_t seed, std::int64_t level,
                            const at::Tensor& first_sample, std::int64_t first_neuron) {
    ctx->save_for_backward({first_sample});
    ctx->saved_data["probability"] = probability;
    ctx->saved_data["place"] = std::vector<std::int64_t>{seed, level, first_neuron};
    return apply_mask(x, probability, place_of(seed, level, first_sample, first_neuron));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto place = ctx->saved_data["place"].toIntVector();
    at::Tensor grad =
        apply_mask(grads[0].contiguous(), ctx->saved_data["probability"].toDouble(),
                   place_of(place[0], place[1], ctx->get_saved_variables()[0], place[2]));
    return {grad, {}, {}, {}, {}, {}};
  }

 private:
  static DropoutPlace place_of(std::int64_t seed, std::int64_t level,
                               const at::Tensor& first_sample, std::int64_t first_neuron) {
    return {static_cast<std::uint64_t>(seed), level, first_sample, first_neuron};
  }
};

}  // namespace

at::Tensor dropout(const at::Tensor& x, double probability, const DropoutPlace& place) {
  DTRAIN_CHECK(x.dim() == 4 && x.is_contiguous());
  if (probability == 0) return x;
  DTRAIN_CHECK(place.first_sample.scalar_type() == at::kLong);
  return CounterDropout::apply(x, probability, static_cast<std::int64_t>(place.seed), place.level,
                               place.first_sample, place.first_neuron);
}

}  // namespace dtrain::model
