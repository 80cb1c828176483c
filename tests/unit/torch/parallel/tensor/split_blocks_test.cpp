// Compares the attention of split BDH blocks with that of whole ones. Losses, norms, gradients and
// traffic are tested in tests/parity/mesh_test.cpp.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "dtrain/base/checksum.h"
#include "dtrain/mesh/mesh_groups.h"
#include "dtrain/model/bdh/bdh.h"
#include "dtrain/model/bdh/internal/bdh_partition.h"
#include "dtrain/parallel/engine/internal/block_runner.h"
#include "dtrain/parallel/tensor/splits.h"
#include "support/action_ids.h"
#include "support/ranks/local_ranks.h"

namespace dtrain::parallel::split_blocks_test {
namespace {

using testing::operator""_m;

constexpr std::int64_t kHeads = 4;
// Neurons per head that are no multiple of a dropout block, so slices start within one.
constexpr model::bdh::BdhSizes kSizes{.layers = 3,
                                      .width = 6,
                                      .heads = kHeads,
                                      .neurons = 12,
                                      .vocab = 16,
                                      .dropout = 0.1,
                                      .tie_layers = true};

// Returns a rank's slice of a parameter's normal values, which are derived from its name.
at::Tensor weight_of(const param::ParameterSpec& spec, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(base::hash_text(spec.name) % 1000);
  at::Tensor weight = at::randn(spec.whole_shape(), generator, at::kDouble).mul(0.25);
  if (spec.cut) {
    weight = weight.narrow(spec.cut->dim, spec.cut->begin,
                           spec.shape[static_cast<std::size_t>(spec.cut->dim)]);
  }
  return weight.to(dtype).contiguous();
}

// Unused: there is no backward pass.
class NoGradients final : public param::GradientMemory {
  param::GradientTarget gradient_of(param::ParameterId) override { return {}; }
};

// Returns the first level's attention (B, nh/tp, T, D) on each rank, for two sequences of seven
// tokens.
std::vector<at::Tensor> attention_on(std::int64_t tp, at::ScalarType dtype,
                                     const model::ComputeOptions& computation) {
  std::vector<at::Tensor> found(static_cast<std::size_t>(tp));
  testing::on_threads(tp, [&](comm::World& world) {
    const mesh::MeshGroups groups(world, mesh::DeviceMesh({{mesh::Axis::tp, tp}}),
                                  {.tensor = model::bdh::tensor_subgroups(kSizes, tp)});
    const auto model = model::bdh::make_bdh(kSizes, /*seq_len=*/7,
                                            {.index = world.rank(), .size = tp}, computation);
    param::ParameterViews weights;
    for (const param::ParameterSpec& spec : model->parameters) {
      weights.push_back(weight_of(spec, dtype));
    }
    const std::unique_ptr<model::TensorAxis> axis = make_tensor_axis(groups);
    NoGradients gradients;
    GradientAccumulator accumulator(*model, gradients, /*interleaved_microbatches=*/1,
                                    [](param::ParameterId) {});
    BlockRunner runner(*model, weights, accumulator, *axis,
                       {.seed = 77, .buffer_dtype = at::kFloat, .frozen = {}});
    runner.set_tap([&](std::string_view name, const at::Tensor& value) {
      if (name != "act.layer0.ykv") return;
      found[static_cast<std::size_t>(world.rank())] = value.detach().clone();
    });
    auto generator = at::make_generator<at::CPUGeneratorImpl>(std::uint64_t{22});
    const at::Tensor ids = at::randint(kSizes.vocab, {2, 7}, generator, at::kLong);
    runner.begin(
        0_m,
        {.ids = ids, .targets = ids.roll(-1, 1), .first_sample = at::scalar_tensor(5, at::kLong)});
    for (const model::BlockId block : model->blocks.ids()) (void)runner.forward(block, 0_m);
  });
  return found;
}

// float16's scores are scaled, and values whose variance is near the norm's epsilon show whether all
// ranks undo that.
TEST_CASE("Split attention in 16 bits matches that of one rank") {
  const at::ScalarType dtype = GENERATE(at::kBFloat16, at::kHalf);
  const std::int64_t tp = GENERATE(2, 8);
  const std::int64_t chunk = GENERATE(0, 3);
  model::ComputeOptions computation;
  if (chunk > 0) {
    computation.attention = {.kind = config::AttentionSetting::Kind::chunked, .chunk = chunk};
  }
  CAPTURE(dtype, tp, chunk);
  const at::Tensor whole = attention_on(1, dtype, computation).front();
  // Neurons, scores, their sum over ranks and the norm round in 16 bits, each once or twice.
  const double bound = dtype == at::kHalf ? 8 * 0x1p-11 : 8 * 0x1p-8;
  const std::vector<at::Tensor> parts = attention_on(tp, dtype, computation);
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    const at::Tensor own = parts[rank].to(at::kDouble);
    const std::int64_t first = static_cast<std::int64_t>(rank) * kHeads / tp;
    const at::Tensor expected = whole.narrow(1, first, own.size(1)).to(at::kDouble);
    CAPTURE(rank);
    CHECK(((own - expected).norm() / expected.norm()).item<double>() <= bound);
  }
}

}  // namespace
}  // namespace dtrain::parallel::split_blocks_test
