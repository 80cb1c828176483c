#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/base/host/available_resources.h"
#include "dtrain/base/log.h"
#include "dtrain/commands/commands.h"
#include "dtrain/commands/internal/opened_model.h"
#include "dtrain/commands/internal/prompts.h"
#include "dtrain/device/plugin.h"
#include "dtrain/job/ranks.h"
#include "dtrain/metrics/format.h"
#include "dtrain/model/family.h"
#include "dtrain/parallel/precision.h"
#include "dtrain/train/continued_text.h"

namespace dtrain::commands {
namespace {

using base::ErrorKind;
using metrics::format_bytes;

// Printed between texts.
constexpr std::string_view kSeparator = "\n---------------\n";

// Makes a model's text safe for a terminal, piece by piece: replaces control characters other than
// newlines and tabs with '?'.
class TerminalText {
 public:
  std::string clean(std::string_view piece) {
    std::string text;
    for (const char c : piece) {
      const auto byte = static_cast<unsigned char>(c);
      const bool is_c1 = last_ == 0xC2 && byte >= 0x80 && byte < 0xA0;  // U+0080 to U+009F
      const bool is_control = (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F || is_c1;
      text += is_control ? '?' : c;
      last_ = byte;
    }
    return text;
  }

 private:
  unsigned char last_ = 0;
};

// The memory that generation needs, by prediction, in bytes.
struct GeneratorMemory {
  std::int64_t weights = 0;
  std::int64_t state = 0;
  std::int64_t prompt = 0;  // temporaries while the prompt is read
  bool grows = false;       // the state grows with the text

  [[nodiscard]] std::int64_t total() const { return weights + state + prompt; }
  [[nodiscard]] std::string text() const {
    return fmt::format(
        "{} of weights, {} of state{}", format_bytes(weights), format_bytes(state),
        prompt == 0 ? "" : fmt::format(", {} to read the prompt", format_bytes(prompt)));
  }
};

// Tokens of the longest prompt, and of the longest text with its prompt.
struct TextLength {
  std::int64_t prompt = 0;
  std::int64_t text = 0;
};

GeneratorMemory predict_memory(const config::ModelConfig& settings, const model::Model& model,
                               at::ScalarType dtype, const TextLength& length) {
  const model::Family& family = model::family_of(settings);
  // The generator is not fed the last token.
  const std::int64_t state = family.generator_bytes(settings, dtype, length.text - 1);
  return {.weights = param::Arena::bytes(param::ArenaLayout(model.parameters), dtype),
          .state = state,
          .prompt = family.prompt_bytes(settings, dtype, length.prompt),
          .grows = family.generator_bytes(settings, dtype, 1) < state};
}

// Throws Error{usage} if --memory-limit, or on a CPU the machine's memory, is exceeded.
void check_memory(const config::MachineConfig& machine, const GeneratorMemory& memory) {
  std::int64_t available = machine.memory_limit.count;
  std::string limit = fmt::format("--memory-limit {}", machine.memory_limit);
  std::string advice;
  if (available == 0) {
    const std::vector<base::MemoryBound> bounds = base::memory_bounds();
    if (bounds.empty() || !machine.device.is_cpu()) return;
    const base::MemoryBound least =
        *std::ranges::min_element(bounds, {}, &base::MemoryBound::bytes);
    available = least.bytes;
    limit = fmt::format("the {} available ({})", format_bytes(least.bytes), least.source);
    advice = ", or override the machine's limit with --memory-limit SIZE";
  }
  if (memory.total() <= available) return;
  const bool is_wide = c10::elementSize(parallel::dtype_of(machine.dtype)) > 2;
  const bool may_shorten = memory.grows && memory.weights < available;
  const std::string_view help = may_shorten ? "fewer --max-tokens, a shorter prompt"
                                : is_wide   ? "--dtype bfloat16"
                                            : "a smaller model";
  base::fail(ErrorKind::usage, "generation needs {} ({}), more than {}: use {}{}",
             format_bytes(memory.total()), memory.text(), limit, help, advice);
}

// Generates the samples of each prompt and writes them.
class TextWriter {
 public:
  TextWriter(const config::Config& config, const data::Tokenizer& tokenizer, const Output& output)
      : config_(config), tokenizer_(tokenizer), output_(output) {}

  // sample: counts from 0. generator: must be new.
  void write(const Prompt& prompt, std::int64_t sample, model::Generator& generator) {
    const config::GenerateConfig& how = config_.generate;
    const train::Continuation continuation{
        .rule = {.temperature = how.temperature,
                 .top_k = how.top_k,
                 .top_p = how.top_p,
                 .seed = config_.train.seed + static_cast<std::uint64_t>(sample)},
        .max_tokens = prompt.max_tokens,
        .stop = how.stop,
        .ignores_end = how.ignore_eos};
    if (how.json_lines) return write_json(prompt, sample, generator, continuation);
    if (!std::exchange(is_first_, false)) output_(kSeparator);
    write_piece(prompt.text);
    train::continue_text(generator, tokenizer_, prompt.tokens, continuation,
                         [&](std::string_view piece) { write_piece(piece); });
  }

 private:
  void write_piece(std::string_view piece) {
    output_(is_shown_ ? terminal_.clean(piece) : std::string(piece));
  }

  // The key finish_reason has the values of OpenAI's API and vLLM.
  void write_json(const Prompt& prompt, std::int64_t sample, model::Generator& generator,
                  const train::Continuation& continuation) {
    std::string text;
    const train::ContinuedText result =
        train::continue_text(generator, tokenizer_, prompt.tokens, continuation,
                             [&](std::string_view piece) { text += piece; });
    const nlohmann::ordered_json object{
        {"prompt", prompt.text},       {"text", text},
        {"sample", sample + 1},        {"seed", continuation.rule.seed},
        {"tokens", result.num_tokens}, {"finish_reason", result.is_stopped ? "stop" : "length"}};
    using Json = nlohmann::ordered_json;
    output_(object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
  }

  const config::Config& config_;
  const data::Tokenizer& tokenizer_;
  const Output& output_;
  TerminalText terminal_;
  bool is_shown_ = ::isatty(STDOUT_FILENO) == 1;
  bool is_first_ = true;
};

}  // namespace

void generate(const config::Config& config, const Output& output) {
  const OpenedModel opened = open_model(config.generate);
  const auto tokenizer = opened.open_tokenizer();
  const model::Family& family = model::family_of(opened.settings);
  const std::vector<Prompt> prompts =
      read_prompts(config.generate, *tokenizer, family.max_positions(opened.settings));
  TextLength longest;
  for (const Prompt& prompt : prompts) {
    const std::int64_t count = std::ssize(prompt.tokens);
    longest.prompt = std::max(longest.prompt, count);
    longest.text = std::max(longest.text, count + prompt.max_tokens);
  }
  const auto model = model::make_model(opened.settings, /*seq_len=*/1);
  const at::ScalarType dtype = parallel::dtype_of(config.machine.dtype);
  const GeneratorMemory memory = predict_memory(opened.settings, *model, dtype, longest);
  check_memory(config.machine, memory);
  const job::DeviceAdvice advice{.if_full = "use --device cpu, or a smaller --dtype",
                                 .if_lost = "check it, or use --device cpu"};
  job::report_device_errors(config.machine.device, advice, [&] {
    const param::Arena weights = opened.read_weights(
        *model, at::TensorOptions(device::open(config.machine.device)).dtype(dtype));
    // Before the first generator allocates its state, and after all errors of the model's file.
    base::log_info("memory: {}", memory.text());
    TextWriter writer(config, *tokenizer, output);
    for (const Prompt& prompt : prompts) {
      for (std::int64_t sample = 0; sample < config.generate.samples; ++sample) {
        writer.write(prompt, sample, *family.make_generator(opened.settings, weights));
      }
    }
  });
}

}  // namespace dtrain::commands
