#include "dtrain/commands/internal/verifier.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/model_file.h"
#include "dtrain/comm/create_world.h"
#include "dtrain/commands/internal/fixture.h"
#include "dtrain/commands/internal/hugging_face_fixture.h"
#include "dtrain/commands/internal/tolerances.h"
#include "dtrain/config/values/layout.h"
#include "dtrain/job/job.h"
#include "dtrain/metrics/metrics_file.h"
#include "dtrain/model/family.h"
#include "dtrain/model/tensor_axis.h"

namespace dtrain::commands {
namespace {

constexpr std::size_t kEarlySteps = 5;  // of TrajectoryTolerances::early_loss
// The error of a value that another pipeline stage computes: below all others.
constexpr double kComputedElsewhere = -1;

// The error relative to the largest expected value; absolute if that is zero. Infinite if the shapes
// differ.
double relative_error(const at::Tensor& found, const at::Tensor& expected) {
  if (found.sizes() != expected.sizes()) return INFINITY;
  const at::Tensor reference = expected.to(at::kDouble);
  const double scale = reference.abs().max().item<double>();
  const double difference = (found.to(at::kDouble).cpu() - reference).abs().max().item<double>();
  return scale == 0 ? difference : difference / scale;
}

double relative_error(double found, double expected) {
  const double difference = std::abs(found - expected);
  return expected == 0 ? difference : difference / std::abs(expected);
}

// Assigns the rows of a batch to this rank's microbatches.
class RowAssignment {
 public:
  RowAssignment(std::int64_t rows, const data::MicrobatchAssignment& deal, std::int64_t num_ranks,
                const std::string& path)
      : deal_(deal) {
    const std::int64_t parts = num_ranks * deal_.grad_accum;
    if (rows % parts != 0) {
      base::fail(base::ErrorKind::usage,
                 "{}: its {} rows cannot be split evenly among {} ranks with --grad-accum {}; use "
                 "fewer ranks or a lower --grad-accum",
                 path, rows, num_ranks, deal_.grad_accum);
    }
    microbatch_ = rows / parts;
  }

  at::Tensor mine(const at::Tensor& rows) const {
    std::vector<at::Tensor> parts;
    for (const auto id : base::first_ids<data::MicrobatchId>(deal_.grad_accum)) {
      parts.push_back(rows.narrow(0, deal_.number_of(id) * microbatch_, microbatch_));
    }
    return at::cat(parts);
  }

  std::vector<data::Batch> batches(const TokenRows& rows) const {
    std::vector<data::Batch> result;
    for (const auto id : base::first_ids<data::MicrobatchId>(deal_.grad_accum)) {
      const std::int64_t first = deal_.number_of(id) * microbatch_;
      result.push_back({.inputs = values(rows.inputs, first),
                        .targets = values(rows.targets, first),
                        .first_sample = first,
                        .num_sequences = microbatch_,
                        .length = rows.inputs.size(1)});
    }
    return result;
  }

 private:
  std::vector<std::int64_t> values(const at::Tensor& rows, std::int64_t first) const {
    const at::Tensor part = rows.narrow(0, first, microbatch_).contiguous();
    const auto* begin = part.const_data_ptr<std::int64_t>();
    return {begin, begin + part.numel()};
  }

  data::MicrobatchAssignment deal_;
  std::int64_t microbatch_ = 0;
};

// Compares one step and a trajectory of the engine with a fixture.
class Verifier {
 public:
  // model: the whole model, not only this rank's part.
  Verifier(parallel::StepEngine& engine, const mesh::MeshGroups& groups, const model::Model& model,
           const config::Config& config, const Fixture& fixture)
      : engine_(engine),
        groups_(groups),
        model_(model),
        config_(config),
        fixture_(fixture),
        tolerances_(config.machine.dtype, engine.precision().compute, fixture) {}

  void check_batch();
  void check_trajectory(const Trajectory& trajectory);
  void check_hugging_face(const Trajectory& trajectory);
  void load_weights();
  // world: all ranks.
  [[nodiscard]] std::vector<Check> agreed_checks(comm::ProcessGroup& world) const;

 private:
  void add(std::string name, double error, double tolerance) {
    checks_.push_back({std::move(name), error, tolerance});
  }
  parallel::StepResult step(const std::vector<data::Batch>& batches,
                            const parallel::StepOptions& options);
  void check_trajectory_errors(const Trajectory& trajectory,
                               const std::vector<parallel::StepResult>& found);
  void check_activations(const std::map<std::string, at::Tensor>& found, const RowAssignment& deal);
  [[nodiscard]] at::Tensor slice_like(const at::Tensor& found, at::Tensor expected) const;
  void check_gradients();
  [[nodiscard]] std::vector<parallel::StepResult> train(const Trajectory& trajectory);
  void check_greedy(const GreedyTokens& expected);
  void check_final_weights(const Trajectory& trajectory);
  [[nodiscard]] std::int64_t data_ranks() const { return groups_.along(mesh::Axis::dp).size(); }
  [[nodiscard]] RowAssignment deal(const TokenRows& rows, const std::string& path) const {
    return {rows.inputs.size(0), engine_.microbatch_assignment(), data_ranks(), path};
  }

  parallel::StepEngine& engine_;
  const mesh::MeshGroups& groups_;
  const model::Model& model_;
  const config::Config& config_;
  const Fixture& fixture_;
  Tolerances tolerances_;
  std::vector<Check> checks_;
  std::map<std::string, std::vector<at::Tensor>> taps_;  // one tensor per microbatch
};

// PyTorch's clip_grad_norm_ divides by the norm plus 1e-6, and so ends below the limit that dtrain
// meets. In float64 that difference exceeds all rounding.
double max_norm_at(const Trajectory& trajectory, std::size_t step) {
  constexpr double kPyTorchEpsilon = 1e-6;
  const double limit = trajectory.train.grad_clip;
  if (!trajectory.clips_as_pytorch) return limit;
  const double norm = trajectory.grad_norm_fp64[step];
  return norm > limit ? limit * norm / (norm + kPyTorchEpsilon) : limit;
}

// Repeats a step whose gradients overflow in float16, at half the scale, since the reference skips no
// step.
parallel::StepResult Verifier::step(const std::vector<data::Batch>& batches,
                                    const parallel::StepOptions& options) {
  for (;;) {
    taps_.clear();
    const parallel::StepResult result = engine_.train_step(batches, options);
    if (!result.has_overflowed) return result;
  }
}

void Verifier::load_weights() {
  const at::NoGradGuard no_grad;
  const param::ParameterSpecs& specs = model_.parameters;
  param::Arena weights(param::ArenaLayout(specs), engine_.precision().master,
                       param::private_memory);
  for (const param::ParameterId id : specs.ids()) {
    param::store_exported(specs[id], fixture_.weights.at(specs[id].name), weights.view(id));
  }
  checkpoint::ArenaSource source(specs, std::move(weights));
  engine_.whole_model().load_weights(source);
  for (const model::ExportedBuffer& buffer : model_.buffers) {
    add(buffer.name, relative_error(buffer.value, fixture_.weights.at(buffer.name)),
        kOneStepTolerance);
  }
}

void Verifier::check_batch() {
  const RowAssignment rows = deal(fixture_.batch, fixture_.path);
  engine_.set_tap([this](std::string_view name, const at::Tensor& value) {
    taps_[std::string(name)].push_back(value.detach().clone());
  });
  const parallel::StepResult found_step = step(rows.batches(fixture_.batch), {});
  engine_.set_tap({});
  add("loss", relative_error(found_step.loss.mean(), fixture_.loss),
      tolerances_.of_one_step("loss"));
  std::map<std::string, at::Tensor> found;
  for (const auto& [name, parts] : taps_) found.emplace(name, at::cat(parts));
  check_activations(found, rows);
  check_gradients();
}

void Verifier::check_activations(const std::map<std::string, at::Tensor>& found,
                                 const RowAssignment& deal) {
  auto expected = fixture_.activations;
  expected.emplace("logits", fixture_.logits);
  for (const auto& [name, value] : expected) {
    const auto mine = found.find(name);
    const double error =
        mine == found.end()
            ? kComputedElsewhere
            : relative_error(mine->second, slice_like(mine->second, deal.mine(value)));
    add(name, error, tolerances_.of_one_step(name));
  }
}

// The slice along one dim that this rank of the tensor axis computes.
at::Tensor Verifier::slice_like(const at::Tensor& found, at::Tensor expected) const {
  if (found.dim() != expected.dim()) return expected;
  const comm::ProcessGroup& tensor = groups_.along(mesh::Axis::tp);
  for (std::int64_t dim = 0; dim < found.dim(); ++dim) {
    if (found.size(dim) >= expected.size(dim)) continue;
    const std::int64_t size = expected.size(dim);
    const bool is_shared = size < tensor.size();  // several ranks share an entry
    const model::TensorCoordinate place{.index = tensor.rank(), .size = tensor.size()};
    const std::int64_t begin =
        is_shared ? tensor.rank() * size / tensor.size() : place.part_of(size).begin;
    expected = expected.narrow(dim, begin, found.size(dim));
  }
  return expected;
}

void Verifier::check_gradients() {
  engine_.whole_model().visit_gradients([this](param::ParameterId id, const at::Tensor& gradient) {
    const param::ParameterSpec& spec = model_.parameters[id];
    add("grad." + spec.name,
        relative_error(param::exported_view(spec, gradient), fixture_.gradients.at(spec.name)),
        tolerances_.of_one_step("grad." + spec.name));
  });
}

std::vector<parallel::StepResult> Verifier::train(const Trajectory& trajectory) {
  std::vector<parallel::StepResult> found;
  for (std::size_t i = 0; i < trajectory.steps.size(); ++i) {
    const auto batches =
        deal(trajectory.steps[i], config_.verify.trajectory).batches(trajectory.steps[i]);
    found.push_back(step(batches, {.max_norm = max_norm_at(trajectory, i),
                                   .learning_rate = trajectory.train.lr.value()}));
  }
  return found;
}

// Errors are relative: the losses and norms of another program, in the run's own dtype.
void Verifier::check_hugging_face(const Trajectory& trajectory) {
  const bool is_float64 = config_.machine.dtype == config::Dtype::float64;
  const std::vector<double>& losses = is_float64 ? trajectory.loss_fp64 : trajectory.loss;
  double loss_error = 0;
  double norm_error = 0;
  const auto largest = [](double a, double b) {
    return std::fmax(a, std::isnan(b) ? INFINITY : b);
  };
  const std::vector<parallel::StepResult> found = train(trajectory);
  for (std::size_t i = 0; i < found.size(); ++i) {
    loss_error = largest(loss_error, relative_error(found[i].loss.mean(), losses[i]));
    norm_error =
        largest(norm_error, relative_error(found[i].grad_norm, trajectory.grad_norm_fp64[i]));
  }
  const double tolerance = tolerances_.of_hugging_face();
  add("trajectory.loss", loss_error, tolerance);
  // A norm sums squares of errors that the mean of losses averages out.
  add("trajectory.grad_norm", norm_error, 10 * tolerance);
  const bool is_low = at::isReducedFloatingType(engine_.precision().compute);
  if (trajectory.greedy && !is_low) check_greedy(*trajectory.greedy);
}

// Counts tokens that differ, up to the first position where the two best logits are so close that
// rounding may decide.
void Verifier::check_greedy(const GreedyTokens& expected) {
  constexpr double kNearTie = 1e-4;
  const param::ParameterSpecs& specs = model_.parameters;
  param::Arena weights(param::ArenaLayout(specs), engine_.precision().master,
                       param::private_memory);
  engine_.whole_model().visit_parameters([&](param::ParameterId id, const at::Tensor& values) {
    const at::NoGradGuard no_grad;
    weights.view(id).copy_(values);
  });
  const auto generator = model::family_of(config_.model).make_generator(config_.model, weights);
  double different = 0;
  for (std::size_t i = 0; i + 1 < expected.all.size(); ++i) {
    const at::Tensor& logits = generator->step(expected.all[i]);
    if (i + 1 < expected.prompt.size()) continue;
    const auto [best, tokens] = logits.topk(2);
    if ((best[0] - best[1]).item<double>() < kNearTie) break;
    if (tokens[0].item<std::int64_t>() != expected.all[i + 1]) ++different;
  }
  add("greedy.different_tokens", different, 0);
}

void Verifier::check_trajectory(const Trajectory& trajectory) {
  check_trajectory_errors(trajectory, train(trajectory));
  check_final_weights(trajectory);
  const auto batches =
      deal(trajectory.final_batch, config_.verify.trajectory).batches(trajectory.final_batch);
  const std::int64_t rows = batches.front().num_sequences;
  const std::int64_t round = rows * data_ranks();
  const parallel::EvaluationPlan plan{
      .num_sequences = static_cast<std::int64_t>(batches.size()) * round,
      .length = batches.front().length,
      .batch_size = rows,
      .read = [&](std::int64_t first, std::int64_t) {
        return batches[static_cast<std::size_t>(first / round)];
      }};
  const double loss = engine_.evaluate(plan).value().mean();
  add("trajectory.final_loss", std::abs(loss - trajectory.final_loss),
      tolerances_.of_trajectory(trajectory.noise).final_loss);
}

void Verifier::check_trajectory_errors(const Trajectory& trajectory,
                                       const std::vector<parallel::StepResult>& found) {
  const bool is_float64 = config_.machine.dtype == config::Dtype::float64;
  const std::vector<double>& expected = is_float64 ? trajectory.loss_fp64 : trajectory.loss;
  double early = 0;
  double all = 0;
  double norms = 0;
  for (std::size_t index = 0; index < found.size(); ++index) {
    const double error = std::abs(found[index].loss.mean() - expected.at(index));
    all = std::fmax(all, std::isnan(error) ? INFINITY : error);
    if (index < kEarlySteps) early = all;
    const double norm_error =
        relative_error(found[index].grad_norm, trajectory.grad_norm_fp64.at(index));
    norms = std::fmax(norms, std::isnan(norm_error) ? INFINITY : norm_error);
  }
  const TrajectoryTolerances tolerances = tolerances_.of_trajectory(trajectory.noise);
  add("trajectory.loss_first_5_steps", early, tolerances.early_loss);
  add("trajectory.loss", all, tolerances.loss);
  add("trajectory.grad_norm", norms, tolerances.grad_norm);
}

void Verifier::check_final_weights(const Trajectory& trajectory) {
  engine_.whole_model().visit_parameters([&](param::ParameterId id, const at::Tensor& values) {
    const std::string& name = model_.parameters[id].name;
    const auto expected = trajectory.final_l2_fp64.find(name);
    if (expected == trajectory.final_l2_fp64.end()) {
      base::fail(base::ErrorKind::data,
                 "{}: the trajectory has no final norm of tensor '{}'; check --trajectory",
                 config_.verify.trajectory, name);
    }
    const double found = values.to(at::kDouble).cpu().norm().item<double>();
    add("trajectory.final_l2." + name, relative_error(found, expected->second),
        tolerances_.of_trajectory(trajectory.noise).final_l2);
  });
}

// Each rank has checked its own rows of its own blocks: the largest error counts, and at least one
// rank must have computed each value.
std::vector<Check> Verifier::agreed_checks(comm::ProcessGroup& world) const {
  std::vector<double> errors;
  for (const Check& check : checks_) {
    errors.push_back(std::isfinite(check.error) ? check.error : INFINITY);
  }
  const at::Tensor all = at::from_blob(errors.data(), {static_cast<std::int64_t>(errors.size())},
                                       at::TensorOptions().dtype(at::kDouble));
  world.all_reduce(all, comm::ReduceOp::max).wait_host();
  std::vector<Check> agreed = checks_;
  for (std::size_t i = 0; i < agreed.size(); ++i) {
    agreed[i].error = errors[i] == kComputedElsewhere ? INFINITY : errors[i];
  }
  return agreed;
}

}  // namespace

bool Verification::passed() const {
  return std::all_of(checks.begin(), checks.end(),
                     [](const Check& check) { return check.passed(); });
}

std::string Verification::to_json(const config::Config& config) const {
  const bool is_golden = config.verify.hugging_face.empty();
  nlohmann::ordered_json json{{is_golden ? "golden" : "huggingface",
                               is_golden ? config.verify.golden : config.verify.hugging_face},
                              {"strategy", text_of(config.layout.strategy)}};
  const mesh::MeshShape mesh = config::mesh_of(config.layout);
  for (const mesh::Axis axis : mesh::kAxes) json[name_of(axis)] = mesh[axis];
  json.update({{"dtype", text_of(config.machine.dtype)},
               {"threads", config.machine.threads},
               {"passed", passed()}});
  for (const Check& check : checks) {
    json["checks"][check.name] = {{"error", metrics::json_number(check.error)},
                                  {"tolerance", check.tolerance},
                                  {"passed", check.passed()}};
  }
  return json.dump();
}

Verification verify(const config::Config& config, std::shared_ptr<comm::World> world) {
  const bool is_hugging_face = !config.verify.hugging_face.empty();
  std::optional<Trajectory> trajectory;
  Fixture fixture;
  if (is_hugging_face) {
    HuggingFaceFixture read = read_hugging_face_fixture(config.verify);
    fixture = std::move(read.fixture);
    trajectory = std::move(read.trajectory);
  } else {
    fixture = read_fixture(config.verify.golden);
  }
  config::Config resolved = config;
  resolved.model = fixture.model;
  resolved.data.seq_len = fixture.batch.inputs.size(1);
  if (!is_hugging_face && !config.verify.trajectory.empty()) {
    if (fixture.model.vocab < 256) {
      base::fail(base::ErrorKind::usage,
                 "{}: the vocabulary is {}, but a trajectory's text is bytes and needs 256; leave "
                 "out --trajectory",
                 fixture.path, fixture.model.vocab);
    }
    trajectory = read_trajectory(config.verify.trajectory, config.verify.name);
  }
  if (trajectory) resolved.train = trajectory->train;
  job::Job job(resolved, std::move(world));
  job.world().close_rendezvous();  // all groups are made
  Verifier verifier(job.engine(), job.groups(), job.whole_model(), resolved, fixture);
  verifier.load_weights();
  verifier.check_batch();
  if (is_hugging_face) {
    verifier.check_hugging_face(*trajectory);
  } else if (trajectory) {
    verifier.check_trajectory(*trajectory);
  }
  return {verifier.agreed_checks(job.world().control())};
}

}  // namespace dtrain::commands
