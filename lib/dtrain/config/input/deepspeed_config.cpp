// Translates a DeepSpeed configuration file into our settings (docs/guide/habits.md).
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/base/text/text.h"
#include "dtrain/config/input/assign.h"
#include "dtrain/config/input/command_line.h"
#include "dtrain/config/input/file.h"
#include "dtrain/config/schema/rows.h"

namespace dtrain::config {
namespace {

using base::ErrorKind;
using base::fail;

/// A key or word of DeepSpeed and ours.
struct Pair {
  std::string_view theirs;
  std::string_view ours;
};
// Keys whose values are copied unchanged to a setting.
constexpr Pair kSame[] = {{"train_batch_size", "batch.global"},
                          {"train_micro_batch_size_per_gpu", "batch.microbatch"},
                          {"gradient_accumulation_steps", "batch.grad_accum"},
                          {"gradient_clipping", "train.grad_clip"},
                          {"steps_per_print", "report.log_every"},
                          {"optimizer.params.lr", "train.lr"},
                          {"optimizer.params.eps", "train.eps"},
                          {"optimizer.params.weight_decay", "train.weight_decay"},
                          {"optimizer.params.momentum", "train.momentum"},
                          {"scheduler.params.warmup_max_lr", "train.lr"},
                          {"scheduler.params.warmup_num_steps", "train.warmup_steps"},
                          {"scheduler.params.total_num_steps", "train.steps"}};
constexpr Pair kOptimizers[] = {{"adam", "adamw"}, {"adamw", "adamw"}, {"sgd", "sgd"}};
constexpr Pair kSchedulers[] = {
    {"warmuplr", "constant"}, {"warmupdecaylr", "linear"}, {"warmupcosinelr", "cosine"}};
constexpr Pair kDtypeWords[] = {{"fp32", "float32"}, {"fp16", "float16"}, {"bf16", "bfloat16"}};

// DeepSpeed's keys that hold objects.
constexpr std::string_view kSections[] = {"optimizer",
                                          "optimizer.params",
                                          "scheduler",
                                          "scheduler.params",
                                          "fp16",
                                          "bf16",
                                          "bfloat16",
                                          "zero_optimization",
                                          "zero_optimization.offload_optimizer",
                                          "zero_optimization.offload_param"};

void flatten_all(const Json& object, const std::string& prefix,
                 std::vector<std::pair<std::string, Json>>& entries) {
  for (const auto& [key, value] : object.items()) {
    if (value.is_object()) {
      flatten_all(value, prefix + key + '.', entries);
    } else {
      entries.emplace_back(prefix + key, value);
    }
  }
}

// A number as written in a flag: 1000 for 1e3, so that integer settings accept it.
std::string number_text(const Json& value) {
  if (!value.is_number_float()) return value.dump();
  const auto number = value.get<double>();
  const bool is_whole = std::abs(number) < 1e15 && number == std::floor(number);
  return is_whole ? fmt::format("{}", static_cast<std::int64_t>(number))
                  : fmt::format("{}", number);
}

/// Reads keys of a file, tracks which were used, and collects the resulting assignments.
class Reader {
 public:
  explicit Reader(const std::string& path) : path_(path) {
    flatten_all(Json::parse(read_object_text(path, "--deepspeed-config")), "", entries_);
    const auto is_section = [](std::string_view name) {
      return std::ranges::find(kSections, name) != std::end(kSections);
    };
    // In DeepSpeed null is the default of a section and means that it is absent.
    std::erase_if(entries_, [&](const auto& entry) {
      return entry.second.is_null() && is_section(entry.first);
    });
    std::set<std::string_view> names;
    for (const auto& [name, value] : entries_) {
      if (!names.insert(name).second) {
        fail(ErrorKind::usage, "{}: the key \"{}\" appears twice", path_, name);
      }
      if (is_section(name)) refuse(name, value, "an object {...}, null, or left out");
    }
  }

  /// Null if the file lacks the key or has "auto".
  [[nodiscard]] const Json* take(std::string_view key) {
    for (const auto& [name, value] : entries_) {
      if (name != key) continue;
      taken_.insert(name);
      return value == kAutomatic ? nullptr : &value;
    }
    return nullptr;
  }

  [[nodiscard]] std::string word(std::string_view key) {
    const Json* value = take(key);
    if (value == nullptr) return {};
    if (!value->is_string()) refuse(key, *value, "a word");
    return value->get<std::string>();
  }
  [[nodiscard]] bool is_on(std::string_view key) {
    const Json* value = take(key);
    if (value == nullptr) return false;
    if (!value->is_boolean()) refuse(key, *value, "true or false");
    return value->get<bool>();
  }

  [[nodiscard]] bool has(std::string_view key) const {
    return std::ranges::any_of(entries_, [&](const auto& entry) { return entry.first == key; });
  }
  [[nodiscard]] bool is_auto(std::string_view key) const {
    return std::ranges::any_of(entries_, [&](const auto& entry) {
      return entry.first == key && entry.second == kAutomatic;
    });
  }

  /// text: as written in a flag. key: DeepSpeed's, for messages.
  void set(std::string_view ours, std::string text, std::string_view key) {
    const Setting* setting = find_key(ours);
    DTRAIN_CHECK(setting != nullptr);
    found_.push_back({setting, std::move(text), fmt::format("{}: {}", path_, key)});
  }

  void set_number(std::string_view ours, const Json& value, std::string_view key) {
    if (!value.is_number()) refuse(key, value, "a number, without quotes");
    set(ours, number_text(value), key);
  }

  [[noreturn]] void refuse(std::string_view key, const Json& value,
                           std::string_view allowed) const {
    fail(ErrorKind::usage, "{}: {}: found {}, but it must be {}", path_, key, value.dump(),
         allowed);
  }

  /// Inserts the assignments before the flags, which override them, and lists unused keys.
  ///
  /// Throws: Error{usage} if the file has keys but none is supported.
  [[nodiscard]] CommandLine add_to(CommandLine flags) const {
    if (!entries_.empty() && taken_.empty()) {
      fail(ErrorKind::usage,
           "{}: none of its keys, such as {}, corresponds to a dtrain setting; give a file of "
           "dtrain settings with --config",
           path_, base::json_text(entries_.front().first));
    }
    for (const auto& [name, value] : entries_) {
      if (!taken_.contains(name) && value != kAutomatic)
        flags.unused_deepspeed_keys.push_back(name);
    }
    flags.num_deepspeed_assignments = found_.size();
    flags.assignments.insert(flags.assignments.begin(), found_.begin(), found_.end());
    return flags;
  }

 private:
  std::string path_;
  std::vector<std::pair<std::string, Json>> entries_;
  std::set<std::string, std::less<>> taken_;
  std::vector<Assignment> found_;
};

void take_word(Reader& reader, std::string_view key, std::span<const Pair> pairs,
               std::string_view ours) {
  const std::string word = reader.word(key);
  if (word.empty()) return;
  std::string lower = word;
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  std::string known;
  for (const Pair& pair : pairs) {
    if (pair.theirs == lower) return reader.set(ours, std::string(pair.ours), key);
    known += fmt::format("{}{}", known.empty() ? "one of " : ", ", pair.theirs);
  }
  reader.refuse(key, word, known);
}

void take_betas(Reader& reader) {
  constexpr std::string_view kKey = "optimizer.params.betas";
  const Json* betas = reader.take(kKey);
  if (betas == nullptr) return;
  if (!betas->is_array() || betas->size() != 2) reader.refuse(kKey, *betas, "two numbers");
  reader.set_number("train.beta1", (*betas)[0], kKey);
  reader.set_number("train.beta2", (*betas)[1], kKey);
}

// If a file names an optimizer, unspecified settings of the update have DeepSpeed's defaults. A
// default without effect is omitted, since the user would be warned about a flag that is not given.
void add_defaults(const CommandLine& flags, Reader& reader) {
  constexpr std::string_view kOptimizer = "optimizer.type";
  constexpr std::string_view kScheduler = "scheduler.type";
  if (!reader.has(kOptimizer)) return;
  const Config config = load(reader.add_to(flags)).config;
  if (!reader.has("optimizer.params.betas") && conditions::kAdamW.is_met(config)) {
    reader.set("train.beta2", "0.999", kOptimizer);
  }
  if (reader.has(kScheduler)) {
    if (conditions::kFallingRate.is_met(config)) reader.set("train.min_lr", "0", kScheduler);
    return;
  }
  reader.set("train.schedule", "constant", kOptimizer);
  reader.set("train.warmup_steps", "0", kOptimizer);
}

void take_dtype(Reader& reader) {
  const bool is_float16 = reader.is_on("fp16.enabled");
  const bool is_bfloat16 = reader.is_on("bf16.enabled") || reader.is_on("bfloat16.enabled");
  if (is_float16 && is_bfloat16) {
    reader.refuse("bf16.enabled", true, "false where fp16.enabled is true");
  }
  if (is_float16) reader.set("machine.dtype", "float16", "fp16.enabled");
  if (is_bfloat16) reader.set("machine.dtype", "bfloat16", "bf16.enabled");
  take_word(reader, "communication_data_type", kDtypeWords, "machine.reduce_dtype");
}

void take_sharding(Reader& reader) {
  constexpr std::string_view kKey = "zero_optimization.stage";
  constexpr std::string_view kStages = "0, 1, 2 or 3";
  if (reader.is_auto(kKey)) reader.refuse(kKey, kAutomatic, kStages);
  const Json* stage = reader.take(kKey);
  if (stage == nullptr || *stage == 0) return reader.set("layout.strategy", "ddp", kKey);
  const std::string found = number_text(*stage);
  if (found != "1" && found != "2" && found != "3") reader.refuse(kKey, *stage, kStages);
  reader.set("layout.strategy", "zero", kKey);
  reader.set("layout.zero_stage", found, kKey);
}

void take_offload(Reader& reader) {
  constexpr std::string_view kOptimizer = "zero_optimization.offload_optimizer.device";
  constexpr std::string_view kParameters = "zero_optimization.offload_param.device";
  const std::string optimizer = reader.word(kOptimizer);
  const std::string parameters = reader.word(kParameters);
  const std::string folder = reader.word("zero_optimization.offload_optimizer.nvme_path");
  for (const auto& [key, device] :
       {std::pair(kOptimizer, optimizer), std::pair(kParameters, parameters)}) {
    if (!device.empty() && device != "none" && device != "cpu" && device != "nvme") {
      reader.refuse(key, device, "none, cpu or nvme");
    }
  }
  if (optimizer == "nvme" && folder.empty()) {
    reader.refuse(kOptimizer, optimizer, "given together with nvme_path, the folder to write to");
  }
  if (optimizer == "nvme") return reader.set("machine.offload", "disk:" + folder, kOptimizer);
  if (parameters == "cpu" || parameters == "nvme") {
    return reader.set("machine.offload", "all", kParameters);
  }
  if (optimizer == "cpu") reader.set("machine.offload", "optimizer", kOptimizer);
}

}  // namespace

CommandLine with_deepspeed(CommandLine command_line) {
  if (command_line.deepspeed_file.empty()) return command_line;
  Reader reader(command_line.deepspeed_file);
  for (const Pair& same : kSame) {
    if (const Json* value = reader.take(same.theirs)) {
      reader.set_number(same.ours, *value, same.theirs);
    }
  }
  take_word(reader, "optimizer.type", kOptimizers, "train.optimizer");
  take_word(reader, "scheduler.type", kSchedulers, "train.schedule");
  take_betas(reader);
  take_dtype(reader);
  take_sharding(reader);
  take_offload(reader);
  if (command_line.config_file.empty()) add_defaults(command_line, reader);
  return reader.add_to(std::move(command_line));
}

}  // namespace dtrain::config
