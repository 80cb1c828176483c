#include "support/oracles/naive_trainer.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "dtrain/model/family.h"
#include "dtrain/param/parameter_spec.h"

namespace dtrain::testing {
namespace {

at::Tensor rows_of(const std::vector<std::int64_t>& tokens, const data::Batch& batch) {
  return at::tensor(tokens, at::kLong).view({batch.num_sequences, batch.length});
}

// Everything of the naive run that changes from step to step.
struct NaiveState {
  std::vector<at::Tensor> weights;  // float64, storage shapes
  std::vector<at::Tensor> first_moments;
  std::vector<at::Tensor> second_moments;
};

NaiveState initial_state(const model::Model& model, std::uint64_t seed) {
  NaiveState state;
  for (const param::ParameterSpec& spec : model.parameters) {
    state.weights.push_back(at::zeros(spec.shape, at::kDouble));
    param::initialise(spec, seed, state.weights.back());
    state.first_moments.push_back(at::zeros(spec.shape, at::kDouble));
    state.second_moments.push_back(at::zeros(spec.shape, at::kDouble));
  }
  return state;
}

void update(const config::TrainConfig& train, const model::Model& model,
            const std::vector<at::Tensor>& gradients, double factor, std::int64_t step,
            NaiveState& state) {
  for (std::size_t id = 0; id < gradients.size(); ++id) {
    const param::ParameterSpec& spec = model.parameters.values()[id];
    const auto& frozen = train.freeze;
    if (std::find(frozen.begin(), frozen.end(), spec.name) != frozen.end()) continue;
    auto* weight = state.weights[id].data_ptr<double>();
    auto* first = state.first_moments[id].data_ptr<double>();
    auto* second = state.second_moments[id].data_ptr<double>();
    const auto* gradient = gradients[id].const_data_ptr<double>();
    for (std::int64_t i = 0; i < state.weights[id].numel(); ++i) {
      ScalarAdamW scalar{first[i], second[i]};
      weight[i] = scalar.update(weight[i], gradient[i] * factor, train.lr.value(), train,
                                spec.decay ? train.weight_decay : 0, step);
      first[i] = scalar.first_moment;
      second[i] = scalar.second_moment;
    }
  }
}

// One loader a step for the whole global batch: the order of samples is data/'s to test, who reads
// which is the engine run's.
std::vector<data::Batch> global_microbatches(const config::Config& config, std::int64_t step) {
  const data::Split split = data::open_split({.train = config.data.train,
                                              .validation = "",
                                              .val_fraction = 0,
                                              .seq_len = config.data.seq_len});
  data::Loader loader(split.train,
                      {.microbatch = config.batch.microbatch,
                       .assignment = {.grad_accum = config.batch.global / config.batch.microbatch},
                       .seed = config.train.seed,
                       .start_position = step * config.batch.global});
  return loader.next();
}

}  // namespace

NaiveGradients naive_gradients(model::Model& model, const std::vector<at::Tensor>& weights,
                               const data::Batch& batch, std::uint64_t seed) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& weight : weights) {
    leaves.push_back(weight.detach().clone().set_requires_grad(true));
  }
  const model::ParameterReader use = [&](param::ParameterId id) {
    return leaves[static_cast<std::size_t>(id.value())];
  };
  model::TensorAxis axis;
  const model::Tap no_tap;
  const model::BlockContext context{
      .first_sample = at::scalar_tensor(batch.first_sample, at::kLong),
      .training = true,
      .seed = seed,
      .targets = rows_of(batch.targets, batch),
      .use = use,
      .tensor_axis = axis,
      .tap = no_tap};
  at::Tensor x = rows_of(batch.inputs, batch);
  for (const auto& block : model.blocks) x = block->forward(x, context);
  const at::Tensor loss = x.to(at::kDouble).sum();
  torch::autograd::backward({loss}, {});
  NaiveGradients result{.sum_nll = loss.item<double>(), .gradients = {}};
  for (const at::Tensor& leaf : leaves) {
    result.gradients.push_back(leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf));
  }
  return result;
}

std::vector<at::Tensor> naive_reduce(comm::ProcessGroup& group,
                                     const std::vector<std::vector<at::Tensor>>& gradients) {
  std::vector<at::Tensor> sums;
  for (std::size_t id = 0; id < gradients.front().size(); ++id) {
    std::vector<at::Tensor> mine;
    for (const auto& microbatch : gradients) mine.push_back(microbatch[id].to(at::kDouble));
    const at::Tensor input = at::stack(mine).contiguous();  // (grad_accum, shape...)
    auto sizes = input.sizes().vec();
    sizes.front() *= group.size();
    const at::Tensor all = at::zeros(sizes, at::kDouble);
    group.all_gather(input.view({-1}), all.view({-1})).wait();
    sums.push_back(all.sum(0));
  }
  return sums;
}

double ScalarAdamW::update(double weight, double gradient, double lr,
                           const config::TrainConfig& train, double weight_decay,
                           std::int64_t step) {
  first_moment = train.beta1 * first_moment + (1 - train.beta1) * gradient;
  second_moment = train.beta2 * second_moment + (1 - train.beta2) * gradient * gradient;
  const double first = first_moment / (1 - std::pow(train.beta1, static_cast<double>(step)));
  const double second = second_moment / (1 - std::pow(train.beta2, static_cast<double>(step)));
  return weight - lr * weight_decay * weight - lr * first / (std::sqrt(second) + train.eps);
}

Trace naive_train(const config::Config& config) {
  const auto model = model::make_model(config.model, config.data.seq_len);
  NaiveState state = initial_state(*model, config.train.seed);
  Trace trace;
  for (std::int64_t step = 0; step < config.train.steps; ++step) {
    double sum_nll = 0;
    std::vector<at::Tensor> sums;
    for (const data::Batch& batch : global_microbatches(config, step)) {
      const NaiveGradients one = naive_gradients(*model, state.weights, batch, config.train.seed);
      sum_nll += one.sum_nll;
      if (sums.empty()) sums.resize(one.gradients.size());
      for (std::size_t id = 0; id < sums.size(); ++id) {
        sums[id] = sums[id].defined() ? sums[id] + one.gradients[id] : one.gradients[id];
      }
    }
    const auto tokens = static_cast<double>(config.batch.global * config.data.seq_len);
    double squares = 0;
    for (std::size_t id = 0; id < sums.size(); ++id) {
      const auto& frozen = config.train.freeze;
      const bool is_frozen = std::find(frozen.begin(), frozen.end(),
                                       model->parameters.values()[id].name) != frozen.end();
      sums[id] = is_frozen ? at::zeros_like(sums[id]) : sums[id] / tokens;
      squares += sums[id].square().sum().item<double>();
    }
    const double norm = std::sqrt(squares);
    const double limit = config.train.grad_clip;
    const double factor = limit > 0 && norm > limit ? limit / norm : 1;
    update(config.train, *model, sums, factor, step + 1, state);
    trace.losses.push_back(sum_nll / tokens);
    trace.norms.push_back(norm);
  }
  for (std::size_t id = 0; id < state.weights.size(); ++id) {
    const std::string& name = model->parameters.values()[id].name;
    trace.state["model." + name] = state.weights[id];
    const auto& frozen = config.train.freeze;
    if (std::find(frozen.begin(), frozen.end(), name) != frozen.end()) continue;
    trace.state["optimizer.exp_avg." + name] = state.first_moments[id];
    trace.state["optimizer.exp_avg_sq." + name] = state.second_moments[id];
  }
  return trace;
}

}  // namespace dtrain::testing
