// Trains a small model for a few steps with the engine on each rank, and collects the results that
// tests compare.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/checkpoint/state.h"
#include "dtrain/comm/world.h"
#include "dtrain/config/config.h"
#include "dtrain/data/loader.h"
#include "dtrain/job/job.h"
#include "support/ranks/local_ranks.h"
#include "support/values.h"

namespace dtrain::testing {

using mesh::Axis;

/// Copies of a state's tensors, which another engine can load.
class MemorySource final : public checkpoint::Source {
 public:
  explicit MemorySource(const checkpoint::State& state);

  [[nodiscard]] bool has(const std::string& name) const override { return tensors_.contains(name); }
  /// Throws: std::runtime_error naming a piece that is missing or has another shape.
  void read(const checkpoint::Piece& piece) override;

  [[nodiscard]] const std::map<std::string, at::Tensor>& tensors() const { return tensors_; }

 private:
  std::map<std::string, at::Tensor> tensors_;
};

/// The results of a run. Compare text() for equal bits, or the numbers for approximate equality.
struct Trace {
  std::vector<double> losses;
  std::vector<double> norms;
  std::map<std::string, at::Tensor> state;  ///< all weights and moments after the last step

  /// Returns one line per number (hexadecimal, with every bit) and per tensor (a hash of its
  /// bytes).
  [[nodiscard]] std::string text() const;
};

/// Returns the configuration of a tiny run: three layers of width 16, dropout 0.1, four steps of
/// eight samples of 32 tokens from tests/golden/text.bin, with active clipping. Uses plain kernels,
/// or fused ones if DTRAIN_TEST_KERNELS selects them.
[[nodiscard]] config::Config tiny_config();

/// Returns `config` with the same global batch on dp ranks with grad_accum microbatches each;
/// derives the microbatch size.
[[nodiscard]] config::Config laid_out(config::Config config, std::int64_t dp,
                                      std::int64_t grad_accum);

/// Derives unset dtypes by role from machine.dtype.
[[nodiscard]] config::Config with_dtypes(config::Config config);

/// As laid_out(), with a sharded data axis. what: "fsdp:full", "fsdp:grad-op", "fsdp:none",
/// "hybrid:2" (shard groups of two), "zero:1", "zero:2" or "zero:3", each optionally followed by
/// "+local" for local accumulation.
[[nodiscard]] config::Config sharded(const config::Config& config, std::int64_t dp,
                                     std::int64_t grad_accum, const std::string& what);

/// Returns `config` with the same global batch on a mesh, with grad_accum microbatches for each
/// data-parallel rank. Other settings of config.layout are unchanged.
[[nodiscard]] config::Config meshed(config::Config config, const mesh::MeshShape& mesh,
                                    std::int64_t grad_accum);
[[nodiscard]] std::int64_t num_ranks(const config::Config& config);

/// One rank of a run, with the same calls that the trainer makes.
class EngineRun {
 public:
  /// first_step: number of steps already done in the state that will be loaded.
  EngineRun(const config::Config& config, comm::World& world, std::int64_t first_step = 0);

  void steps(std::int64_t count);
  /// Lowers float16's loss scale until no gradient overflows, so that no update is skipped and runs
  /// have equal numbers of updates. No-op in other dtypes. Collective.
  void lower_loss_scale();
  /// Computes the gradients of the next step, without an update.
  void forward_backward_only();
  [[nodiscard]] const config::Config& config() const { return config_; }
  [[nodiscard]] job::Job& job() { return job_; }
  /// Returns losses and norms so far, and the current state, assembled from several ranks if they
  /// share it. Collective.
  [[nodiscard]] Trace trace();

 private:
  config::Config config_;
  std::int64_t first_step_;
  job::Job job_;
  data::Split split_;
  data::Loader loader_;
  Trace trace_;
};

/// Makes a rank's world from its thread's world.
using WorldOf = std::function<std::shared_ptr<comm::World>(std::shared_ptr<comm::World> host)>;

/// Trains on ranks that are threads and returns each rank's trace. world_of: empty to use the
/// thread's world.
[[nodiscard]] std::vector<Trace> train_on_threads(const config::Config& config,
                                                  const WorldOf& world_of = {});

/// Trains on ranks that are processes. The text of each outcome is the rank's Trace::text().
[[nodiscard]] std::vector<RankOutcome> train_on_processes(const config::Config& config,
                                                          const std::string& backend);

}  // namespace dtrain::testing
