#include "dtrain/config/resolve/notices.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string_view>

#include "dtrain/config/family.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/values/data_mixture.h"
#include "dtrain/config/values/layout.h"

namespace dtrain::config {
namespace {

constexpr std::size_t kMaxListed = 24;
constexpr std::string_view kPerRunKeys[] = {"data.train", "data.validation", "run.dir",
                                            "run.overwrite", "checkpoint.resume"};

// "--flag VALUE has no effect without ..."; empty if the setting has an effect.
std::string no_effect_line(const Setting& setting, const Config& config) {
  if (!setting.family.empty() && setting.family != config.model.name) {
    return fmt::format("{} has no effect with --model {}", setting.flag, config.model.name);
  }
  for (const Requirement* requirement : setting.requirements.all) {
    if (requirement == nullptr || requirement->is_met(config)) continue;
    std::string reason(requirement->unmet_text);
    if (!requirement->value_key.empty()) {
      reason.replace(reason.find("{}"), 2, value_text(*find_key(requirement->value_key), config));
    }
    const std::string value = setting.is_switch() ? "" : " " + value_text(setting, config);
    return fmt::format("{}{} has no effect {}", setting.flag, value, reason);
  }
  return {};
}

// Warns if this number of ranks and microbatches makes sums differ from those of a single rank.
std::string summation_order_line(const Config& config) {
  const std::int64_t grad_accum = config.batch.grad_accum;
  if (config.machine.reduction == Reduction::fast ||
      matches_single_rank_order(config.layout, grad_accum)) {
    return {};
  }
  LayoutConfig local = config.layout;
  local.accumulate = Accumulation::local;
  return fmt::format(
      "{} ranks with --grad-accum {}{} add gradients in another order than one rank, so bits "
      "differ "
      "from other layouts: {}use powers of two (docs/guide/determinism.md)",
      config.layout.dp, grad_accum,
      config.layout.fsdp_sharding == FsdpSharding::hybrid
          ? fmt::format(" and --shard-size {}", config.layout.shard_size)
          : "",
      matches_single_rank_order(local, grad_accum) ? "set --accumulate local, or " : "");
}

// A file that the mixture names more than once; empty if there is none.
std::string repeated_file(const std::string& mixture) {
  std::set<std::filesystem::path> seen;
  for (const WeightedFile& file : mixture_or_file(mixture)) {
    if (!seen.insert(std::filesystem::path(file.path).lexically_normal()).second) return file.path;
  }
  return {};
}

// Warns about settings that cost accuracy, reproducibility or meaningful validation.
void add_cost_warnings(const Config& config, std::vector<std::string>& lines) {
  lines.push_back(summation_order_line(config));
  lines.push_back(positions_warning(config));
  if (config.machine.compile && config.machine.device.is_cpu()) {
    lines.push_back("--compile: on a CPU it means --kernels fused, which is already the default");
  }
  if (is_16_bit(config.machine.buffer_dtype)) {
    lines.push_back(
        fmt::format("--buffer-dtype {}: positions lose precision; float32 costs next to nothing",
                    config.machine.buffer_dtype));
  }
  if (!config.data.validation.empty() && config.data.validation == config.data.train &&
      config.train.lr != 0.0) {
    lines.push_back(
        fmt::format("--val-data {} is the training data, so its loss does not measure "
                    "generalization; give another file, or --val-fraction",
                    config.data.validation));
  }
  if (const std::string file = repeated_file(config.data.train); !file.empty()) {
    lines.push_back(
        fmt::format("--data names {} several times, so its weights add up: name it once", file));
  }
  if (config.data.val_fraction > 0.5) {
    lines.push_back(
        fmt::format("--val-fraction {} holds out more of --data for validation than it trains on",
                    config.data.val_fraction));
  }
}

}  // namespace

std::string changed_settings(const Config& requested) {
  std::vector<std::string> changed;
  for (const Setting& setting : settings()) {
    if (!setting.is_used(Command::train, requested) || is_default(setting, requested) ||
        std::ranges::count(kPerRunKeys, setting.key) > 0) {
      continue;
    }
    changed.push_back(fmt::format("{}={}", setting.key, value_text(setting, requested)));
  }
  if (changed.size() <= kMaxListed) return fmt::format("{}", fmt::join(changed, " "));
  const std::size_t rest = changed.size() - kMaxListed;
  changed.resize(kMaxListed);
  return fmt::format("{} and {} more", fmt::join(changed, " "), rest);
}

std::string device_note(const Config& requested, const Config& config, const Launch& launch) {
  if (requested.machine.device.kind != "auto") return {};
  if (launch.num_gpus == 0) {
    const bool is_explained = !launch.no_gpu_reason.empty() && !launch.devices.empty();
    return is_explained ? "--device auto chose cpu: " + launch.no_gpu_reason : "";
  }
  const DeviceName& taken = config.machine.device;
  const std::string gpus =
      launch.num_gpus == 1 ? "is 1 GPU" : fmt::format("are {} GPUs", launch.num_gpus);
  if (!taken.is_cpu()) return fmt::format("--device auto chose {}: there {}", taken, gpus);
  if (launch.devices.empty()) {
    return fmt::format(
        "--device auto chose cpu: there {}, but no libdtrain_cuda.so; scripts/build.sh dtrain_cuda "
        "builds it",
        gpus);
  }
  return fmt::format("--device auto chose cpu: there {}, and this machine has more ranks", gpus);
}

std::string threads_warning(const Config& requested, const Config& config, const Launch& launch,
                            bool is_bound) {
  const bool has_threads = strategy_of(config.layout).is_local();
  const std::int64_t beside = is_bound ? 1 : std::max<std::int64_t>(1, launch.local_world_size);
  const std::int64_t ranks = has_threads ? config.layout.local_ranks : beside;
  const std::int64_t threads = config.machine.threads;
  if (threads == 1 || threads * ranks <= launch.usable_cores) return {};
  return fmt::format(
      "{} {}{} more threads than the {} usable core{}, which slows the run down: use at most {}",
      requested.machine.threads != 0 ? "--threads" : "OMP_NUM_THREADS", threads,
      ranks == 1 ? " is" : fmt::format(" on each of {} ranks are", ranks), launch.usable_cores,
      launch.usable_cores == 1 ? "" : "s", std::max<std::int64_t>(1, launch.usable_cores / ranks));
}

// RoPE has angles for any position, so such a model trains, as in transformers.
std::string positions_warning(const Config& config) {
  const Family& family = family_of(config.model);
  if (family.max_positions == nullptr) return {};
  const std::int64_t most = family.max_positions(config.model);
  if (config.data.seq_len <= most) return {};
  return fmt::format(
      "--seq-len {} is above --max-positions {}: sequences contain positions beyond the model's "
      "maximum, which generation does not support; use --seq-len {} or less",
      config.data.seq_len, most, most);
}

std::vector<std::string> warnings(Command command, const Config& config,
                                  std::span<const Setting* const> flags) {
  std::vector<std::string> lines;
  for (const Setting& setting : settings()) {
    if (!setting.is_for(command)) continue;
    // The default of a layout setting, such as --fsdp-sharding full, may also ask for a strategy.
    const bool is_flag =
        setting.key.starts_with("layout.") && std::ranges::count(flags, &setting) > 0;
    if (is_flag || !is_default(setting, config)) lines.push_back(no_effect_line(setting, config));
  }
  if (command == Command::train) add_cost_warnings(config, lines);
  std::erase(lines, "");
  return lines;
}

}  // namespace dtrain::config
