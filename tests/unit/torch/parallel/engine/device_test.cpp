// A step whose tensors lie where the world says.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "dtrain/parallel/engine/step_engine.h"
#include "support/local_ranks.h"
#include "support/small_blocks.h"
#include "support/values.h"

namespace dtrain::parallel {
namespace {

// A world on LibTorch's device without memory, where an operation on tensors of several devices is
// an error.
class MetaWorld final : public comm::World {
 public:
  explicit MetaWorld(comm::World& inner) : inner_(inner) {}
  std::int64_t rank() const override { return inner_.rank(); }
  std::int64_t size() const override { return inner_.size(); }
  c10::Device device() const override { return c10::Device(at::kMeta); }
  std::string_view backend() const override { return inner_.backend(); }
  at::Tensor allocate(std::int64_t bytes) override {
    return at::empty({bytes}, options(at::kByte));
  }
  std::shared_ptr<comm::ProcessGroup> split(std::span<const std::int64_t> ranks,
                                            std::string_view name) override {
    return inner_.split(ranks, name);
  }
  comm::ProcessGroup& control() override { return inner_.control(); }

 private:
  comm::World& inner_;
};

TEST_CASE("Parameters, gradients, tokens and losses of a step lie on the world's device") {
  testing::on_threads(1, [](comm::World& inner) {
    MetaWorld world(inner);
    const mesh::MeshGroups groups(world, mesh::DeviceMesh({}));
    const auto model = testing::small_model({{}, {.is_native = true}});
    StepEngine engine(*model, world, groups, {.grad_accum_steps = 2, .seed = 3, .optimizer = {}});
    const std::vector<data::Batch> batches{testing::small_batch(0), testing::small_batch(2)};
    engine.forward_backward(batches);
    testing::expect(engine.parameters().flat().is_meta(), "parameters");
    testing::expect(engine.gradients().flat().is_meta(), "gradients");
    for (const checkpoint::Piece& piece : engine.state()) {
      if (piece.tensor.numel() > 8) testing::expect(piece.tensor.is_meta(), piece.name);
    }
  });
}

}  // namespace
}  // namespace dtrain::parallel
