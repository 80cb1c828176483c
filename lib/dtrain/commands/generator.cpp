#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "dtrain/base/error.h"
#include "dtrain/commands/commands.h"
#include "dtrain/commands/internal/opened_model.h"
#include "dtrain/data/tokens/token_file.h"
#include "dtrain/device/plugin.h"
#include "dtrain/job/ranks.h"
#include "dtrain/model/family.h"
#include "dtrain/parallel/precision.h"
#include "dtrain/train/model_file.h"

namespace dtrain::commands {
namespace {

using base::ErrorKind;

std::unique_ptr<model::Generator> make_generator(const OpenedModel& opened,
                                                 const at::TensorOptions& options) {
  const auto model = model::make_model(opened.settings, /*seq_len=*/1);
  return model::family_of(opened.settings)
      .make_generator(opened.settings, opened.read_weights(*model, options));
}

// source: "standard input", or the flag and its file.
[[noreturn]] void refuse_prompt(const std::string& source) {
  base::fail(ErrorKind::data, "{}: cannot be read: {}", source, std::strerror(errno));
}

std::string read_all(int fd, const std::string& source, std::int64_t max_bytes) {
  std::string text;
  std::array<char, 4096> buffer;
  while (static_cast<std::int64_t>(text.size()) <= max_bytes) {
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse_prompt(source);
    if (count == 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return text;
}

// Returns --prompt, the standard input for "-", or the file of --prompt-file, which may be a pipe.
// Stops reading soon after max_bytes, so that an endless input causes an error.
std::string read_prompt(const config::GenerateConfig& generate, std::int64_t max_bytes) {
  constexpr std::string_view kStandardInput = "-";
  if (generate.prompt == kStandardInput || generate.prompt_file == kStandardInput) {
    return read_all(STDIN_FILENO, "standard input", max_bytes);
  }
  if (generate.prompt_file.empty()) return generate.prompt;
  const std::string source = "--prompt-file " + generate.prompt_file;
  const int fd = ::open(generate.prompt_file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) refuse_prompt(source);
  std::string text = read_all(fd, source, max_bytes);
  ::close(fd);
  return text;
}

/// A text to continue, and its tokens.
struct Prompt {
  std::string text;
  std::vector<std::int64_t> tokens;
};

Prompt tokenized_prompt(const config::GenerateConfig& generate, const data::Tokenizer& tokenizer,
                        std::int64_t max_positions) {
  const bool has_bytes = tokenizer.kind() == data::TokenizerKind::bytes;
  // A generous bound: a token has a few bytes.
  const std::int64_t bytes_per_token = has_bytes ? 1 : 32;
  const std::int64_t most_bytes = max_positions * bytes_per_token;
  Prompt prompt{.text = read_prompt(generate, most_bytes), .tokens = {}};
  // Checked before tokenizing: a truncated prompt may end within a character.
  if (std::ssize(prompt.text) > most_bytes) {
    base::fail(ErrorKind::usage,
               "the prompt has more than {} bytes: the model has {} positions; shorten it",
               most_bytes, max_positions);
  }
  prompt.tokens = data::prompt_tokens(tokenizer, prompt.text, "the prompt");
  const std::int64_t count = prompt.text.empty() ? 0 : std::ssize(prompt.tokens);
  if (count + generate.max_tokens > max_positions) {
    base::fail(ErrorKind::usage,
               "--max-tokens {} after a prompt of {} {}: the model has {} positions; shorten one",
               generate.max_tokens, count, has_bytes ? "bytes" : "tokens", max_positions);
  }
  return prompt;
}

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

}  // namespace

void generate(const config::Config& config, const Output& output) {
  const OpenedModel opened = open_model(config.generate);
  const auto tokenizer = opened.open_tokenizer();
  const Prompt prompt =
      tokenized_prompt(config.generate, *tokenizer,
                       model::family_of(opened.settings).max_positions(opened.settings));
  const job::DeviceAdvice advice{.if_full = "use --device cpu, or a smaller --dtype",
                                 .if_lost = "check it, or use --device cpu"};
  job::report_device_errors(config.machine.device, advice, [&] {
    const auto generator =
        make_generator(opened, at::TensorOptions(device::open(config.machine.device))
                                   .dtype(parallel::dtype_of(config.machine.dtype)));
    TerminalText terminal;
    const bool is_shown = ::isatty(STDOUT_FILENO) == 1;
    const auto write = [&](std::string_view piece) {
      output(is_shown ? terminal.clean(piece) : std::string(piece));
    };
    write(prompt.text);
    const model::SamplingRule rule{.temperature = config.generate.temperature,
                                   .top_k = config.generate.top_k,
                                   .seed = config.train.seed};
    train::continue_text(*generator, *tokenizer, prompt.tokens, rule, config.generate.max_tokens,
                         write);
  });
}

}  // namespace dtrain::commands
