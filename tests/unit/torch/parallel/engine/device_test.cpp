// A step whose tensors lie where the world says.
#include <ATen/ATen.h>

#include <array>
#include <catch2/catch.hpp>

#include "dtrain/parallel/engine/step_engine.h"
#include "support/local_ranks.h"
#include "support/small_blocks.h"
#include "support/stub_group.h"
#include "support/values.h"

namespace dtrain::parallel::device_test {
namespace {

// One rank, whose sums are its own values.
class AloneOnMeta final : public testing::StubGroup {
  std::int64_t size() const override { return 1; }
  comm::Work post(comm::Operation operation) override {
    testing::expect(std::get<comm::AllReduce>(operation).tensor.is_meta(), "what is communicated");
    return {};
  }
};

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
  std::shared_ptr<comm::ProcessGroup> split(std::span<const std::int64_t>,
                                            std::string_view) override {
    return std::make_shared<AloneOnMeta>();
  }
  comm::ProcessGroup& control() override { return inner_.control(); }

 private:
  comm::World& inner_;
};

// Rows of a matrix as products, since lookups want memory.
class Rows final : public model::Block {
 public:
  at::Tensor forward(const at::Tensor& ids, const model::BlockContext& context) override {
    const at::Tensor weight = context.use(ids_[0]);  // (V, D)
    const at::Tensor chosen =
        at::zeros({ids.size(0), ids.size(1), weight.size(0)}, weight.options());
    return at::matmul(chosen.scatter(2, ids.unsqueeze(2), 1), weight);
  }
  std::span<const param::ParameterId> parameters() const override { return ids_; }
  model::BlockMemory memory(const model::BatchShape&) const override { return {}; }

 private:
  std::array<param::ParameterId, 1> ids_{param::ParameterId(0)};
};

TEST_CASE("Parameters, gradients, tokens and losses of a step lie on the world's device") {
  testing::on_threads(1, [](comm::World& inner) {
    MetaWorld world(inner);
    const mesh::MeshGroups groups(world, mesh::DeviceMesh({}));
    const auto model = testing::small_model({{}, {.is_native = true}});
    model->blocks.front() = std::make_unique<Rows>();
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
}  // namespace dtrain::parallel::device_test
