#include "support/engine_run.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <stdexcept>

#include "dtrain/base/error.h"
#include "dtrain/config/bdh/settings.h"
#include "dtrain/config/resolve/resolve.h"
#include "dtrain/config/saved_run.h"
#include "dtrain/config/values/layout.h"
#include "support/settings.h"

namespace dtrain::testing {
namespace {

std::uint64_t hash_of(const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.contiguous().view({-1}).view(at::kByte);
  std::uint64_t hash = 0xCBF29CE484222325;
  const auto* data = bytes.const_data_ptr<std::uint8_t>();
  for (std::int64_t i = 0; i < bytes.numel(); ++i) hash = (hash ^ data[i]) * 0x100000001B3;
  return hash;
}

data::LoaderOptions loader_options(const config::Config& config, job::Job& job,
                                   std::int64_t first_step) {
  return {.microbatch = config.batch.microbatch,
          .assignment = job.engine().microbatch_assignment(),
          .seed = config.train.seed,
          .start_position = first_step * config.batch.global};
}

// Does not own the world: the caller keeps it.
std::shared_ptr<comm::World> borrowed(comm::World& world) {
  return {std::shared_ptr<void>(), &world};
}

// Assembles a tensor of which the ranks of a group hold disjoint parts; a rank's missing bytes are
// zero, and adding zeros is exact.
at::Tensor joined(comm::ProcessGroup& group, const std::vector<checkpoint::Piece>& parts,
                  at::IntArrayRef shape, const at::TensorOptions& options) {
  const at::Tensor whole = at::zeros(shape, options);
  for (const checkpoint::Piece& piece : parts) {
    at::Tensor place = whole;
    for (std::size_t dim = 0; dim < piece.box.sizes.size(); ++dim) {
      place = place.narrow(static_cast<std::int64_t>(dim), piece.box.offsets[dim],
                           piece.box.sizes[dim]);
    }
    place.copy_(piece.tensor);
  }
  group.all_reduce(whole.view(-1).view(at::kByte)).wait();
  return whole.cpu();
}

// True if the parameter has moments, that is, is not frozen.
bool has_moments(job::Job& job, const std::string& name) {
  for (const param::ParameterId id : job.plan().options.frozen) {
    if (job.plan().model->parameters[id].name == name) return false;
  }
  return true;
}

// Assembles weights and moments from shards, slices and stages. With data parallelism only, each
// replica assembles its own copy, so tests compare them; on a mesh all ranks get the first copy.
std::map<std::string, at::Tensor> whole_state(job::Job& job) {
  const checkpoint::State state = job.engine().whole_model().state();
  const mesh::MeshShape& sizes = job.groups().mesh().sizes();
  const bool is_on_mesh = sizes[Axis::pp] > 1 || sizes[Axis::tp] > 1;
  comm::ProcessGroup& holders = is_on_mesh ? job.groups().world() : job.groups().shards();
  if (holders.size() == 1) return MemorySource(state).tensors();
  std::map<std::string, at::Tensor> whole;
  std::map<std::string, std::vector<checkpoint::Piece>> parts;
  for (const checkpoint::Piece& piece : state) {
    if (piece.name == "optimizer.num_updates" || piece.name == "optimizer.loss_scale") {
      whole[piece.name] = piece.tensor.clone().cpu();  // held by every rank
    } else if (!is_on_mesh || piece.replica.index == 0) {
      parts[piece.name].push_back(piece);
    }
  }
  std::vector<std::string> prefixes{"model.", "optimizer.exp_avg.", "optimizer.exp_avg_sq."};
  if (std::holds_alternative<optim::SgdOptions>(job.plan().options.optimizer)) {
    prefixes = {"model.", "optimizer.momentum_buffer."};
  }
  const auto options = job.world().options(job.engine().precision().master);
  for (const param::ParameterSpec& spec : job.whole_model().parameters) {
    for (const std::string& prefix : prefixes) {
      if (prefix != "model." && !has_moments(job, spec.name)) continue;
      const std::string name = prefix + spec.name;
      whole[name] = joined(holders, parts[name], spec.shape, options);
    }
  }
  return whole;
}

// Replaces the loss scale of a state.
class LowScale final : public checkpoint::Source {
 public:
  explicit LowScale(const checkpoint::State& state) : state_(state) {}
  [[nodiscard]] bool has(const std::string& name) const override { return state_.has(name); }
  void read(const checkpoint::Piece& piece) override {
    state_.read(piece);
    if (piece.name == "optimizer.loss_scale") piece.tensor[0].fill_(256);
  }

 private:
  MemorySource state_;
};

const RankProgram kTrain("train", [](comm::World& world, const std::string& request) {
  const config::Config config = config::from_request(request).config;
  EngineRun run(config, world);
  run.steps(config.train.steps);
  return run.trace().text();
});

}  // namespace

MemorySource::MemorySource(const checkpoint::State& state) {
  for (const checkpoint::Piece& piece : state) tensors_[piece.name] = piece.tensor.clone().cpu();
}

void MemorySource::read(const checkpoint::Piece& piece) {
  const auto found = tensors_.find(piece.name);
  if (found == tensors_.end()) throw std::runtime_error("no piece " + piece.name);
  at::Tensor part = found->second;
  if (part.sizes() != at::IntArrayRef(piece.global_shape)) {
    throw std::runtime_error("another shape: " + piece.name);
  }
  for (std::size_t dim = 0; dim < piece.box.sizes.size(); ++dim) {
    part =
        part.narrow(static_cast<std::int64_t>(dim), piece.box.offsets[dim], piece.box.sizes[dim]);
  }
  at::Tensor(piece.tensor).copy_(part);
}

std::string Trace::text() const {
  std::string text;
  for (std::size_t step = 0; step < losses.size(); ++step) {
    text += fmt::format("step {} loss {:a} norm {:a}\n", step + 1, losses[step], norms[step]);
  }
  for (const auto& [name, tensor] : state) text += fmt::format("{} {:x}\n", name, hash_of(tensor));
  return text;
}

config::Config tiny_config() {
  config::Config config;
  config.model = {.layers = 3,
                  .width = 16,
                  .heads = 2,
                  .family = config::bdh::Settings{.neurons = 32},
                  .dropout = 0.1};
  config.data.train = DTRAIN_SOURCE_DIR "/tests/golden/text.bin";
  config.data.seq_len = 32;
  config.batch.global = 8;
  config.train.steps = 4;
  config.train.seed = 11;
  config.train.lr = 1e-2;
  config.train.schedule = config::ScheduleShape::constant;
  config.train.warmup_steps = 0;
  config.train.min_lr = 0.0;
  config.train.grad_clip = 0.5;
  config.machine.threads = 1;
  const char* kernels = std::getenv("DTRAIN_TEST_KERNELS");
  const bool is_fused = kernels != nullptr && std::string_view(kernels) == "fused";
  config.machine.kernels = is_fused ? config::Kernels::automatic : config::Kernels::plain;
  return laid_out(config, 1, 1);
}

config::Config laid_out(config::Config config, std::int64_t dp, std::int64_t grad_accum) {
  config.layout.strategy = dp == 1 ? config::Strategy::single : config::Strategy::ddp;
  config.layout.pp = 1;
  config.layout.dp = dp;
  config.layout.tp = 1;
  config.batch.grad_accum = grad_accum;
  config.batch.microbatch = base::div_exact(config.batch.global, dp * grad_accum);
  return config;
}

config::Config with_dtypes(config::Config config) {
  config::resolve_dtypes(config.machine);
  if (config.machine.kernels == config::Kernels::automatic) {
    const bool is_half = config.machine.param_dtype == config::Dtype::float16;
    config.machine.kernels = is_half ? config::Kernels::plain : config::Kernels::fused;
  }
  return config;
}

config::Config sharded(const config::Config& config, std::int64_t dp, std::int64_t grad_accum,
                       const std::string& what) {
  config::Config result = laid_out(config, dp, grad_accum);
  const std::string name = what.substr(0, what.find('+'));
  const std::string kind = name.substr(0, name.find(':'));
  const std::string option = name.substr(name.find(':') + 1);
  result.layout.strategy = kind == "zero" ? config::Strategy::zero : config::Strategy::fsdp;
  if (kind == "zero") result.layout.zero_stage = std::stoll(option);
  if (kind == "fsdp") set(result, "layout.fsdp_sharding", option);
  if (kind == "hybrid") {
    set(result, "layout.fsdp_sharding", "hybrid");
    result.layout.shard_size = std::stoll(option);
  }
  if (what.ends_with("+local")) set(result, "layout.accumulate", "local");
  return config::resolve(
      config::Command::train, result,
      {.world_size = dp, .local_world_size = dp, .usable_cores = dp, .devices = {"fake"}});
}

EngineRun::EngineRun(const config::Config& config, comm::World& world, std::int64_t first_step)
    : config_(with_dtypes(config)),
      first_step_(first_step),
      job_(config_, borrowed(world)),
      split_(data::open_split({.train = config.data.train,
                               .validation = "",
                               .val_fraction = 0,
                               .seq_len = config.data.seq_len})),
      loader_(split_.train, loader_options(config_, job_, first_step)) {}

void EngineRun::steps(std::int64_t count) {
  for (std::int64_t step = 0; step < count; ++step) {
    const std::vector<data::Batch> microbatches = loader_.next();
    const parallel::StepResult result = job_.engine().train_step(
        microbatches,
        {.max_norm = config_.train.grad_clip,
         .learning_rate = config_.train.lr.value(),
         .compresses = first_step_ + std::ssize(trace_.losses) >= config_.machine.compress_warmup});
    trace_.losses.push_back(result.loss.mean());
    // The kind of non-finite value may depend on the layout.
    trace_.norms.push_back(std::isfinite(result.grad_norm) ? result.grad_norm : INFINITY);
  }
}

void EngineRun::lower_loss_scale() {
  LowScale state(job_.engine().whole_model().state());
  job_.engine().whole_model().load_state(state);
}

void EngineRun::forward_backward_only() {
  job_.engine().forward_backward(loader_.next());
  trace_.losses.push_back(job_.engine().finish_step().loss.mean());
}

Trace EngineRun::trace() {
  Trace trace = trace_;
  trace.state = whole_state(job_);
  return trace;
}

config::Config meshed(config::Config config, const mesh::MeshShape& mesh, std::int64_t grad_accum) {
  set(config, "layout.strategy", "3d");
  for (const Axis axis : mesh::kAxes) size_of(config.layout, axis) = mesh[axis];
  config.batch.grad_accum = grad_accum;
  config.batch.microbatch = base::div_exact(config.batch.global, mesh[Axis::dp] * grad_accum);
  const std::int64_t ranks = mesh.num_ranks();
  return config::resolve(
      config::Command::train, config,
      {.world_size = ranks, .local_world_size = ranks, .usable_cores = ranks, .devices = {"fake"}});
}

std::int64_t num_ranks(const config::Config& config) {
  return config::mesh_of(config.layout).num_ranks();
}

std::vector<Trace> train_on_threads(const config::Config& config, const WorldOf& world_of) {
  const std::int64_t ranks = num_ranks(config);
  std::vector<Trace> traces(static_cast<std::size_t>(ranks));
  on_threads(ranks, [&](comm::World& host) {
    const auto world = world_of ? world_of(borrowed(host)) : borrowed(host);
    EngineRun run(config, *world);
    run.steps(config.train.steps);
    traces[static_cast<std::size_t>(world->rank())] = run.trace();
  });
  return traces;
}

std::vector<RankOutcome> train_on_processes(const config::Config& config,
                                            const std::string& backend) {
  return on_processes("train", {.size = num_ranks(config),
                                .argument = config::to_request({config::Command::train, config}),
                                .backend = backend});
}

}  // namespace dtrain::testing
