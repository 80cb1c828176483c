// The resolved configuration as plain values. Every field is declared once more, with its key,
// flag, default, range and help, in schema.cpp, or beside its family; nothing else knows names of
// settings.
#pragma once

#include <any>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/config/values/values.h"

namespace dtrain::config {

/// The settings that model families have of their own: one struct for each family (family.h).
class OwnSettings {
 public:
  /// The defaults of every family.
  OwnSettings();
  /// The same with this struct in place of its defaults.
  template <typename Settings>
  OwnSettings(Settings settings) : OwnSettings() {
    of<Settings>() = std::move(settings);
  }

  template <typename Settings>
  [[nodiscard]] Settings& of() {
    return const_cast<Settings&>(std::as_const(*this).template of<Settings>());
  }
  template <typename Settings>
  [[nodiscard]] const Settings& of() const {
    for (const std::any& each : structs_) {
      if (const auto* found = std::any_cast<Settings>(&each)) return *found;
    }
    throw std::bad_any_cast();
  }

 private:
  std::vector<std::any> structs_;
};

/// As configs/experiments/mini.json: what trains on a laptop in minutes.
struct ModelConfig {
  std::string name = "bdh";
  std::int64_t levels = 4;
  std::int64_t width = 64;   // D
  OwnSettings own = {};      // of the families
  std::int64_t vocab = 256;  // V
  double dropout = 0.1;
  bool tie_levels = true;
};

struct DataConfig {
  std::string train;           // token file, or text read as bytes
  std::string validation;      // the same; empty: val_fraction of `train`
  double val_fraction = 0.0;   // share of `train` (its end) kept for validation
  std::int64_t seq_len = 128;  // T
};

/// global = microbatch * grad_accum * dp; 0 means: follows from the other two (config/resolve/resolve.cpp).
struct BatchConfig {
  std::int64_t global = 0;      // sequences per optimizer step
  std::int64_t microbatch = 0;  // sequences per rank and backward pass
  std::int64_t grad_accum = 0;  // microbatches per rank and step
};

struct TrainConfig {
  std::int64_t steps = 800;
  double epochs = 0;  // from which `steps` follows (apps/dtrain/configure.cpp); 0: it is given
  std::uint64_t seed = 1;
  std::optional<double> lr;  // none: default_learning_rate (config/resolve/resolve.h)
  double weight_decay = 0.1;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-8;
  double momentum = 0.9;
  double grad_clip = 1.0;  // largest global gradient norm; 0: off
  ScheduleShape schedule = ScheduleShape::warmup_stable_decay;
  std::optional<std::int64_t> warmup_steps;  // none: a twentieth of the steps
  std::int64_t decay_steps = 0;              // wsd; 0: a tenth of the steps
  std::optional<double> min_lr;  // where linear, cosine and wsd end; none: a tenth of lr
  UpdateRule optimizer = UpdateRule::adamw;
  OnNonfinite on_nonfinite = OnNonfinite::stop;
  std::int64_t max_skipped = 20;  // updates left out in a row
  std::int64_t patience = 0;      // evaluations in a row without a new best loss; 0: any number
  SpikeGuard spike_guard = SpikeGuard::off;
  double spike_threshold = 6;       // standard deviations above the mean
  std::vector<std::string> freeze;  // exported parameter names
};

struct LayoutConfig {
  Strategy strategy = Strategy::single;
  std::int64_t pp = 0;  // stages of the pipeline; sizes: 0 follows from strategy and world size
  std::int64_t dp = 0;
  std::int64_t tp = 0;
  DataAxisKind data_axis = DataAxisKind::ddp;  // of 3d
  PipelineSetting schedule_pp;
  LevelSplit pp_split;
  bool tp_vocab = false;         // the vocabulary is split too
  std::int64_t local_ranks = 0;  // of dp and mp: threads; 0: as many as devices, else 2
  DeviceList devices;            // of dp and mp, by rank
  std::int64_t nnodes = 0;       // 0: as launched; else must agree with the launch
  std::int64_t zero_stage = 2;
  FsdpSharding fsdp_sharding = FsdpSharding::full;
  std::int64_t shard_size = 0;  // ranks; 0: all, with hybrid those of one node
  WrapPolicy wrap;
  Accumulation accumulate = Accumulation::automatic;
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  bool forward_prefetch = false;
  std::int64_t limit_gathers = 2;  // units
};

struct MachineConfig {
  DeviceName device;
  Backend backend = Backend::automatic;
  Dtype dtype = Dtype::float32;
  Dtype param_dtype = Dtype::automatic;        // automatic: dtype
  Dtype reduce_dtype = Dtype::automatic;       // automatic: float32, or float64 with dtype float64
  Dtype buffer_dtype = Dtype::automatic;       // the same
  std::int64_t threads = 0;                    // per rank; 0: OMP_NUM_THREADS or the usable cores
  Reduction reduction = Reduction::automatic;  // ordered on the CPU, fast on other devices
  Kernels kernels = Kernels::automatic;        // fused where they exist
  AttentionSetting attention;                  // over positions, of fused kernels
  MatmulPrecision matmul_precision = MatmulPrecision::highest;  // of float32 products on a GPU
  std::string interface;  // of the network, for gloo and NCCL; empty: the one towards rank 0
  double comm_timeout_seconds = 600;
  Compression compress;                       // of gradients between replicas
  std::int64_t compress_warmup = 0;           // steps
  std::int64_t compress_min_elements = 4096;  // of a parameter
  Offload offload;
  RecomputeSetting recompute;
  bool compile = false;        // device graphs
  bool share_devices = false;  // several ranks may compute on one
  ByteSize memory_limit;       // of a rank's tensors; 0: none
  bool mixed_cpus = false;     // ranks may be on CPUs of several types
};

struct ReportConfig {
  std::int64_t log_every = 10;             // steps; 0: off
  std::int64_t eval_every = 0;             // steps; 0: only at the end
  Sequences eval_sequences{.count = 256};  // per evaluation, over all ranks
  std::int64_t sample_every = 0;           // steps; 0: no samples
  std::string sample_prompt;               // empty: a sample begins after a newline
  bool tensorboard = true;                 // event files in the run folder
  std::int64_t profile = 0;                // steps; 0: none
};

struct CheckpointConfig {
  Interval every;               // 0: the last; none: not even it
  std::int64_t keep_last = 3;   // checkpoints
  std::int64_t keep_every = 0;  // steps whose multiples are never removed; 0: none
  bool keep_best = false;       // the one of the lowest validation loss is made, and not removed
  Resume resume;
  bool strict_resume = false;   // refuse to pass over a damaged checkpoint
  bool new_data = false;        // resume with other data, from its beginning
  std::string init_from;        // weights to begin with
  double write_limit_mbps = 0;  // MB/s of each rank; 0: as fast as it goes
};

struct RunConfig {
  std::string dir;  // run folder; empty: runs/NAME-N, named when the run begins
  bool overwrite = false;
  Duration time_limit;  // 0: none
};

struct GenerateConfig {
  std::string from;              // run folder, or model.safetensors
  std::int64_t from_levels = 0;  // of a file that does not say its model's levels; 0: it says
  std::string prompt;            // "-": standard input
  std::string prompt_file;       // "-": standard input; empty: prompt
  std::int64_t max_tokens = 200;
  double temperature = 1.0;  // 0: the most likely token
  std::int64_t top_k = 0;    // 0: off
};

struct ExportConfig {
  std::string checkpoint;          // checkpoint or run folder
  std::string file;                // to be written
  Dtype dtype = Dtype::automatic;  // automatic: as the checkpoint
  bool overwrite = false;
};

struct ImportConfig {
  std::string file;         // safetensors
  std::string checkpoint;   // folder to be made
  std::int64_t levels = 0;  // of a file that does not say its model's levels; 0: it says
};

struct VerifyConfig {
  std::string golden;
  std::string trajectory;
  std::string name;
};

/// Of `dtrain plan`.
struct PlanConfig {
  std::int64_t ranks = 0;           // 0: as many as this machine has cores, and fewer
  std::int64_t ranks_per_node = 0;  // 0: all
  ByteSize device_memory;           // of each rank; 0: its share of this machine's
  double device_tflops = 0;         // that a rank reaches; 0: measured here
  ByteRate link;                    // bytes a second between nodes; 0: as within one
  std::int64_t show = 8;            // layouts
};

struct Config {
  ModelConfig model;
  DataConfig data;
  BatchConfig batch;
  TrainConfig train;
  LayoutConfig layout;
  MachineConfig machine;
  ReportConfig report;
  CheckpointConfig checkpoint;
  RunConfig run;
  GenerateConfig generate;
  VerifyConfig verify;
  ExportConfig exporting;
  ImportConfig importing;
  PlanConfig plan;
};

}  // namespace dtrain::config
