#include "support/oracles/small_blocks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "support/ids.h"

namespace dtrain::testing {
namespace {

constexpr std::int64_t kWidth = 8;
constexpr std::int64_t kVocab = 16;

param::ParameterSpec weight(std::string name, std::int64_t rows, std::int64_t columns) {
  param::ParameterSpec spec = matrix(std::move(name), rows, columns);
  spec.init_stddev = 0.5;
  return spec;
}

// The identity, whose backward calls a function.
class Watched : public torch::autograd::Function<Watched> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            std::int64_t callback) {
    ctx->saved_data["callback"] = callback;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const auto* callback =
        reinterpret_cast<const std::function<void()>*>(ctx->saved_data["callback"].toInt());
    (*callback)();
    return {grads[0], {}};
  }
};

class OneParameterBlock : public model::Block {
 public:
  explicit OneParameterBlock(param::ParameterId id) : ids_{id} {}
  std::span<const param::ParameterId> parameters() const override { return ids_; }
  model::BlockMemory memory(const model::BatchShape&) const override { return {}; }

 protected:
  std::array<param::ParameterId, 1> ids_;
};

class Embedding final : public OneParameterBlock {
 public:
  using OneParameterBlock::OneParameterBlock;
  at::Tensor forward(const at::Tensor& ids, const model::BlockContext& context) override {
    return at::embedding(context.use(ids_[0]), ids);
  }
};

class Mix final : public OneParameterBlock {
 public:
  Mix(param::ParameterId id, BlockWatch watch) : OneParameterBlock(id), watch_(std::move(watch)) {}
  at::Tensor forward(const at::Tensor& x, const model::BlockContext& context) override {
    if (watch_.on_forward) watch_.on_forward();
    const bool uses =
        !watch_.uses_parameter || watch_.uses_parameter(context.first_sample.item<std::int64_t>());
    at::Tensor y = uses ? at::tanh(at::matmul(x, context.use(ids_[0]))) : at::tanh(x);
    if (!watch_.on_backward) return y;
    return Watched::apply(y, reinterpret_cast<std::int64_t>(&watch_.on_backward));
  }

 private:
  BlockWatch watch_;
};

// Mix with a backward of its own, whose products go straight into the gradients' memory.
class NativeMix final : public OneParameterBlock, private model::NativeBackward {
 public:
  NativeMix(param::ParameterId id, BlockWatch watch)
      : OneParameterBlock(id), watch_(std::move(watch)) {}
  at::Tensor forward(const at::Tensor& x, const model::BlockContext& context) override {
    if (watch_.on_forward) watch_.on_forward();
    return at::tanh(at::matmul(x, context.use(ids_[0])));
  }
  model::NativeBackward* native_backward() override { return this; }

 private:
  at::Tensor forward(const at::Tensor& x, const model::BlockContext& context,
                     std::vector<at::Tensor>& saved) override {
    saved = {forward(x, context)};
    return saved.front();
  }
  at::Tensor backward(const at::Tensor& x, const at::Tensor& gradient,
                      std::span<const at::Tensor> saved, const model::BlockContext& context,
                      const GradientOf& gradient_of) override {
    const at::Tensor& y = saved.front();
    const at::Tensor inner = (gradient * (1 - y * y)).view({-1, kWidth});
    const at::Tensor rows = x.reshape({-1, kWidth}).t();
    param::GradientTarget place = gradient_of(ids_[0]);
    if (place.view.defined()) {
      place.view.addmm_(rows, inner, /*beta=*/place.is_first ? 0 : 1);
    }
    return at::matmul(inner, context.use(ids_[0]).t()).view(x.sizes());
  }

  BlockWatch watch_;
};

std::unique_ptr<model::Block> mix(param::ParameterId id, const BlockWatch& watch) {
  if (watch.is_native) return std::make_unique<NativeMix>(id, watch);
  return std::make_unique<Mix>(id, watch);
}

class Head final : public OneParameterBlock {
 public:
  using OneParameterBlock::OneParameterBlock;
  at::Tensor forward(const at::Tensor& x, const model::BlockContext& context) override {
    const at::Tensor logits = at::matmul(x, context.use(ids_[0])).view({-1, kVocab});
    return at::cross_entropy_loss(logits, context.targets.reshape(-1), {}, at::Reduction::None)
        .view(context.targets.sizes());
  }
};

class WatchedBlock final : public model::Block {
 public:
  WatchedBlock(std::unique_ptr<model::Block> block, BlockWatch watch)
      : block_(std::move(block)), watch_(std::move(watch)) {}
  std::span<const param::ParameterId> parameters() const override { return block_->parameters(); }
  model::BlockMemory memory(const model::BatchShape& shape) const override {
    return block_->memory(shape);
  }
  at::Tensor forward(const at::Tensor& x, const model::BlockContext& context) override {
    if (watch_.on_forward) watch_.on_forward();
    at::Tensor y = block_->forward(x, context);
    if (!watch_.on_backward) return y;
    return Watched::apply(y, reinterpret_cast<std::int64_t>(&watch_.on_backward));
  }

 private:
  std::unique_ptr<model::Block> block_;
  BlockWatch watch_;
};

}  // namespace

std::unique_ptr<model::Block> watched(std::unique_ptr<model::Block> block, BlockWatch watch) {
  return std::make_unique<WatchedBlock>(std::move(block), std::move(watch));
}

std::unique_ptr<model::Model> small_model(const std::vector<BlockWatch>& watches) {
  auto model = std::make_unique<model::Model>();
  model->parameters.push_back(weight("embed", kVocab, kWidth));
  model->blocks.push_back(std::make_unique<Embedding>(param::ParameterId(0)));
  for (const BlockWatch& watch : watches) {
    const param::ParameterId id = model->parameters.end_id();
    model->parameters.push_back(weight(fmt::format("mix.{}", id.value() - 1), kWidth, kWidth));
    model->blocks.push_back(mix(id, watch));
  }
  model->blocks.push_back(std::make_unique<Head>(model->parameters.end_id()));
  model->parameters.push_back(weight("head", kWidth, kVocab));
  model->costs = decltype(model->costs)(model->blocks.size());
  model->width = kWidth;
  return model;
}

data::Batch small_batch(std::int64_t first_sample) {
  data::Batch batch{.first_sample = first_sample, .num_sequences = 2, .length = 5};
  for (std::int64_t i = 0; i < 10; ++i) {
    const std::int64_t value = first_sample * 7 + i * i * 3 + 1;
    batch.inputs.push_back(value % kVocab);
    batch.targets.push_back((value * 5 + 2) % kVocab);
  }
  return batch;
}

}  // namespace dtrain::testing
