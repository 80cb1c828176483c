// Plain structs with the value of every setting. The settings table (schema/tables/, and each
// family's settings) adds key, flag, range and help to each field; no other code lists settings.
#pragma once

#include <any>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/config/values/values.h"

namespace dtrain::config {

/// Settings specific to model families: one struct per family (family.h).
class FamilySettings {
 public:
  /// The defaults of every family.
  FamilySettings();
  /// `settings` for its family, defaults for the others.
  template <typename Settings>
  FamilySettings(Settings settings) : FamilySettings() {
    get<Settings>() = std::move(settings);
  }

  template <typename Settings>
  [[nodiscard]] Settings& get() {
    return const_cast<Settings&>(std::as_const(*this).template get<Settings>());
  }
  template <typename Settings>
  [[nodiscard]] const Settings& get() const {
    for (const std::any& each : structs_) {
      if (const auto* found = std::any_cast<Settings>(&each)) return *found;
    }
    throw std::bad_any_cast();
  }

 private:
  std::vector<std::any> structs_;
};

/// The defaults are those of configs/experiments/mini.json, which trains on a laptop in minutes.
struct ModelConfig {
  std::string name = "bdh";
  std::int64_t layers = 4;
  std::int64_t width = 64;  // D
  std::int64_t heads = 4;   // of attention
  FamilySettings family = {};
  std::int64_t vocab = 256;  // V
  double dropout = 0.1;
};

struct DataConfig {
  std::string train;           // token file, or text read as bytes
  std::string validation;      // likewise; empty: val_fraction of `train`
  double val_fraction = 0.0;   // share of `train`, at its end, held out for validation
  std::int64_t seq_len = 128;  // T
};

/// global = microbatch * grad_accum * dp. A size of 0 is derived from the other two
/// (values/batch.h).
struct BatchConfig {
  std::int64_t global = 0;      // sequences per optimizer step
  std::int64_t microbatch = 0;  // sequences per rank and backward pass
  std::int64_t grad_accum = 0;  // microbatches per rank and step
};

struct TrainConfig {
  std::int64_t steps = 800;
  double epochs = 0;  // if positive, determines `steps` (apps/dtrain/settings/configure.cpp)
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
  std::optional<double> min_lr;  // final rate of linear, cosine and wsd; none: a tenth of lr
  UpdateRule optimizer = UpdateRule::adamw;
  OnNonfinite on_nonfinite = OnNonfinite::stop;
  std::int64_t max_skipped = 20;  // consecutive skipped updates
  std::int64_t patience = 0;      // consecutive evaluations without a new best loss; 0: unlimited
  SpikeGuard spike_guard = SpikeGuard::off;
  double spike_threshold = 6;         // standard deviations above the mean
  std::vector<std::string> freeze;    // exported parameter names
  std::vector<std::string> no_decay;  // names, patterns or kinds of parameters without weight decay
};

struct LayoutConfig {
  Strategy strategy = Strategy::single;
  std::int64_t pp = 0;  // pipeline stages; a size of 0 is derived from strategy and world size
  std::int64_t dp = 0;
  std::int64_t tp = 0;
  DataAxisKind data_axis = DataAxisKind::ddp;  // with strategy 3d
  PipelineSetting schedule_pp;
  LayerSplit pp_split;
  bool tp_vocab = false;         // also splits the vocabulary
  std::int64_t local_ranks = 0;  // threads of strategies dp and mp; 0: one per device, else 2
  DeviceList devices;            // by rank, for strategies dp and mp
  std::int64_t nnodes = 0;       // 0: as launched; otherwise must equal the launch's
  std::int64_t zero_stage = 2;
  FsdpSharding fsdp_sharding = FsdpSharding::full;
  std::int64_t shard_size = 0;  // ranks; 0: all, or those of one node with hybrid
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
  Dtype buffer_dtype = Dtype::automatic;       // automatic: as for reduce_dtype
  std::int64_t threads = 0;                    // per rank; 0: OMP_NUM_THREADS or the usable cores
  Reduction reduction = Reduction::automatic;  // ordered on the CPU, fast on other devices
  Kernels kernels = Kernels::automatic;        // automatic: fused if available
  AttentionSetting attention;
  MatmulPrecision matmul_precision = MatmulPrecision::highest;  // of float32 matmuls on a GPU
  std::string interface;  // network interface of gloo and NCCL; empty: the route to rank 0
  double comm_timeout_seconds = 600;
  Compression compress;                       // of gradients between replicas
  std::int64_t compress_warmup = 0;           // steps
  std::int64_t compress_min_elements = 4096;  // smaller parameters are not compressed
  Offload offload;
  RecomputeSetting recompute;
  bool compile = false;        // device graphs
  bool share_devices = false;  // lets several ranks share a device
  ByteSize memory_limit;       // for the tensors of a rank; 0: none
  bool mixed_cpus = false;     // allows ranks on different CPU types
};

struct ReportConfig {
  std::int64_t log_every = 10;             // steps; 0: off
  std::int64_t eval_every = 0;             // steps; 0: only at the end
  Sequences eval_sequences{.count = 256};  // per evaluation, over all ranks
  std::int64_t sample_every = 0;           // steps; 0: no samples
  std::string sample_prompt;               // empty: samples begin after a newline
  bool tensorboard = true;                 // event files in the run folder
  std::int64_t profile = 0;                // steps; 0: none
};

struct CheckpointConfig {
  Interval every;               // 0: only at the end; none: never
  std::int64_t keep_last = 3;   // checkpoints
  std::int64_t keep_every = 0;  // steps; checkpoints at multiples are never removed; 0: off
  bool keep_best = false;       // saves at each new lowest validation loss and keeps the lowest
  Resume resume;
  bool strict_resume = false;   // rejects a damaged latest checkpoint
  bool new_data = false;        // resumes with other data, from its first sample
  std::string init_from;        // source of the initial weights
  double write_limit_mbps = 0;  // MB/s per rank; 0: unlimited
};

struct RunConfig {
  std::string dir;  // run folder; empty: runs/NAME-N, chosen at the start
  bool overwrite = false;
  Duration time_limit;  // 0: none
};

/// Tokens of a generated text by default, if the model has positions for them.
inline constexpr std::int64_t kUsualTextTokens = 200;

struct GenerateConfig {
  std::string from;              // run folder, or model.safetensors
  std::int64_t from_layers = 0;  // for files without the number of layers; 0: from the file
  std::string prompt;            // "-": standard input
  std::string prompt_file;       // "-": standard input; empty: prompt
  std::string prompts;           // file with several prompts, "-": standard input; empty: one
  // empty: kUsualTextTokens, reduced to the model's remaining positions
  std::optional<std::int64_t> max_tokens;
  double temperature = 1.0;  // 0: greedy
  std::int64_t top_k = 0;    // 0: off
  double top_p = 1.0;        // 1: off
  std::int64_t samples = 1;  // of each prompt
  std::vector<std::string> stop;
  bool ignore_eos = false;
  bool json_lines = false;
};

struct ExportConfig {
  std::string checkpoint;  // checkpoint or run folder
  std::string file;        // output; a folder with format huggingface
  ExportFormat format = ExportFormat::safetensors;
  Dtype dtype = Dtype::automatic;                                 // automatic: the checkpoint's
  ByteSize shard_size{.count = 5'000'000'000, .written = "5GB"};  // huggingface; 0: one file
  bool overwrite = false;
};

struct ImportConfig {
  std::string file;         // safetensors
  std::string checkpoint;   // output folder
  std::int64_t layers = 0;  // for files without the number of layers; 0: from the file
};

struct VerifyConfig {
  std::string golden;
  std::string hugging_face;  // folder
  std::string expected;      // of the folder's model
  std::string text;          // of the folder's trajectory
  std::string trajectory;
  std::string name;
};

/// Settings of `dtrain plan`.
struct PlanConfig {
  std::int64_t ranks = 0;           // 0: every divisor of this machine's core count
  std::int64_t ranks_per_node = 0;  // 0: all
  ByteSize device_memory;           // per rank; 0: its share of this machine's memory
  double device_tflops = 0;         // achieved TFLOP/s per rank; 0: measured here
  ByteRate link;                    // bytes per second between nodes; 0: as within a node
  std::int64_t show = 8;            // number of layouts printed
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
