#include "dtrain/config/hugging_face/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/text/text.h"

namespace dtrain::config {
namespace {

constexpr std::size_t kMaxShownBytes = 80;

// Keys that describe the file, its tokens, text generation, other tasks or how a program reports
// and runs, and change neither logits nor loss.
constexpr std::string_view kKeysWithoutArithmetic[] = {
    // the file
    "architectures", "model_type", "transformers_version", "torch_dtype", "dtype", "_name_or_path",
    "name_or_path", "_model_name_or_path", "_commit_hash", "transformers.js_config",
    "unsloth_version", "unsloth_fixed", "is_llama_config", "use_bfloat16", "torchscript",
    "xla_device",
    // tokens
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id",
    "decoder_start_token_id", "tokenizer_class", "prefix",
    // generation
    "use_cache", "max_length", "min_length", "do_sample", "early_stopping", "num_beams",
    "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p",
    "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
    "bad_words_ids", "num_return_sequences", "forced_bos_token_id", "forced_eos_token_id",
    "remove_invalid_values", "exponential_decay_length_penalty", "suppress_tokens",
    "begin_suppress_tokens",
    // results and other tasks
    "output_attentions", "output_hidden_states", "output_past", "output_scores", "return_dict",
    "return_dict_in_generate", "id2label", "label2id", "num_labels", "_num_labels", "problem_type",
    "task_specific_params", "finetuning_task", "tf_legacy_loss",
    // implementations
    "attn_implementation", "_attn_implementation", "_attn_implementation_internal",
    "_attn_implementation_autoset", "chunk_size_feed_forward", "gradient_checkpointing",
    "is_decoder", "is_encoder_decoder", "tie_encoder_decoder"};

std::string shown(const Json& value) {
  return base::printable(value.dump(-1, ' ', true), kMaxShownBytes);
}

}  // namespace

std::string HuggingFaceKeys::full_name(std::string_view key) const {
  return parent_.empty() ? std::string(key) : fmt::format("{}.{}", parent_, key);
}

void HuggingFaceKeys::refuse(std::string_view key, std::string_view problem) const {
  const auto found = object_.find(key);
  base::fail(base::ErrorKind::checkpoint, "'{}': {}{} {}", origin_, base::printable(full_name(key)),
             found == object_.end() ? " is missing," : fmt::format(" is {},", shown(*found)),
             problem);
}

bool HuggingFaceKeys::has(std::string_view key) const { return object_.contains(key); }

const Json* HuggingFaceKeys::find(std::string_view key) {
  read_.emplace(key);
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

std::int64_t HuggingFaceKeys::required_size(std::string_view key) {
  const auto found = size(key);
  if (!found) refuse(key, "but it must be given: a whole number above 0");
  return *found;
}

std::optional<std::int64_t> HuggingFaceKeys::whole_number(std::string_view key, std::int64_t lowest,
                                                          std::optional<std::int64_t> absent) {
  const Json* const found = find(key);
  if (found == nullptr) return has(key) ? std::nullopt : absent;
  // A number of a file that does not fit is a float64 or an unsigned number.
  if (!found->is_number_integer() || found->get<double>() >= 0x1p63 ||
      found->get<std::int64_t>() < lowest) {
    refuse(key, lowest > 0 ? "but it must be a whole number above 0"
                           : "but it must be a whole number, not negative");
  }
  return found->get<std::int64_t>();
}

std::optional<std::int64_t> HuggingFaceKeys::size(std::string_view key,
                                                  std::optional<std::int64_t> absent) {
  return whole_number(key, 1, absent);
}

std::optional<std::int64_t> HuggingFaceKeys::count(std::string_view key,
                                                   std::optional<std::int64_t> absent) {
  return whole_number(key, 0, absent);
}

std::optional<double> HuggingFaceKeys::number(std::string_view key) {
  const Json* const found = find(key);
  if (found == nullptr) return std::nullopt;
  if (!found->is_number() || !std::isfinite(found->get<double>())) {
    refuse(key, "but it must be a number");
  }
  return found->get<double>();
}

double HuggingFaceKeys::required_number(std::string_view key) {
  const auto found = number(key);
  if (!found) refuse(key, "but it must be given: a number");
  return *found;
}

std::optional<bool> HuggingFaceKeys::flag(std::string_view key) {
  const Json* const found = find(key);
  if (found == nullptr) return std::nullopt;
  if (!found->is_boolean()) refuse(key, "but it must be true or false");
  return found->get<bool>();
}

std::optional<std::string> HuggingFaceKeys::text(std::string_view key) {
  const Json* const found = find(key);
  if (found == nullptr) return std::nullopt;
  if (!found->is_string()) refuse(key, "but it must be a text");
  return found->get<std::string>();
}

std::optional<std::vector<std::string>> HuggingFaceKeys::texts(std::string_view key) {
  const Json* const found = find(key);
  if (found == nullptr) return std::nullopt;
  const bool is_list = found->is_array() && std::ranges::all_of(*found, [](const Json& each) {
                         return each.is_string();
                       });
  if (!is_list) refuse(key, "but it must be a list of texts");
  return found->get<std::vector<std::string>>();
}

std::optional<HuggingFaceKeys> HuggingFaceKeys::object(std::string_view key) {
  const Json* const found = find(key);
  if (found == nullptr) return std::nullopt;
  if (!found->is_object()) refuse(key, "but it must be an object");
  if (found->empty()) return std::nullopt;
  return HuggingFaceKeys(*found, origin_, full_name(key));
}

void HuggingFaceKeys::require(std::string_view key, const Json& only, std::string_view meaning) {
  const Json* const found = find(key);
  if (found == nullptr || *found == only) return;
  refuse(key, fmt::format("but dtrain has no {}: it must be {}", meaning, shown(only)));
}

void HuggingFaceKeys::reject_unread() const {
  for (const auto& [key, value] : object_.items()) {
    if (read_.contains(key)) continue;
    if (parent_.empty() && std::ranges::count(kKeysWithoutArithmetic, key) > 0) continue;
    refuse(key,
           "a key that dtrain does not know: it may change the results; remove it from the file if "
           "it does not");
  }
}

}  // namespace dtrain::config
