#include "dtrain/commands/internal/prompts.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "dtrain/base/error.h"
#include "dtrain/base/io/blocking_read.h"
#include "dtrain/data/source/json_text.h"

namespace dtrain::commands {
namespace {

using base::ErrorKind;

constexpr std::string_view kStandardInput = "-";
constexpr std::int64_t kMaxBytesOfPrompts = std::int64_t{1} << 30;

// source: "standard input", or the flag and its file.
[[noreturn]] void refuse_prompt(const std::string& source) {
  base::fail(ErrorKind::data, "{}: cannot be read: {}", source, std::strerror(errno));
}

std::string read_all(int fd, const std::string& source, std::int64_t max_bytes) {
  std::string text;
  std::array<char, 4096> buffer;
  while (static_cast<std::int64_t>(text.size()) <= max_bytes) {
    const ssize_t count = base::blocking_read(fd, buffer);
    if (count < 0) refuse_prompt(source);
    if (count == 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return text;
}

// Reads a file, which may be a pipe, or the standard input for "-". Stops reading soon after
// max_bytes, so that an endless input causes an error.
std::string read_file(std::string_view flag, const std::string& path, std::int64_t max_bytes) {
  if (path == kStandardInput) return read_all(STDIN_FILENO, "standard input", max_bytes);
  const std::string source = fmt::format("{} {}", flag, path);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) refuse_prompt(source);
  std::string text = read_all(fd, source, max_bytes);
  ::close(fd);
  return text;
}

// The string "prompt" of a JSON object. place: the file and line.
std::string prompt_of(std::string_view line, const std::string& place) {
  const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) {
    base::fail(ErrorKind::data, R"({}: expected a JSON object such as {{"prompt": "TEXT"}})",
               place);
  }
  const auto found = object.find("prompt");
  if (found == object.end() || !found->is_string()) {
    base::fail(ErrorKind::data, R"({}: the object needs a text "prompt")", place);
  }
  return found->get<std::string>();
}

struct Texts {
  std::vector<std::string> all;
  bool are_numbered;
};

Texts texts_of(const config::GenerateConfig& generate, std::int64_t max_bytes) {
  if (!generate.prompts.empty()) {
    const std::string content = read_file("--prompts", generate.prompts, kMaxBytesOfPrompts);
    if (std::ssize(content) > kMaxBytesOfPrompts) {
      base::fail(ErrorKind::usage, "--prompts {}: the file has more than {} bytes; split it",
                 generate.prompts, kMaxBytesOfPrompts);
    }
    return {.all = prompts_in(content, generate.prompts), .are_numbered = true};
  }
  if (!generate.prompt_file.empty()) {
    return {.all = {read_file("--prompt-file", generate.prompt_file, max_bytes)},
            .are_numbered = false};
  }
  if (generate.prompt != kStandardInput) return {.all = {generate.prompt}, .are_numbered = false};
  return {.all = {read_file("--prompt", generate.prompt, max_bytes)}, .are_numbered = false};
}

// Returns how many tokens continue a prompt with `used` positions. prompt: its name and length.
std::int64_t continuation_length(std::optional<std::int64_t> wanted, std::int64_t used,
                                 std::int64_t max_positions, std::string_view prompt) {
  const std::int64_t most = max_positions - used;
  if (most < 1) {
    base::fail(ErrorKind::usage, "{}: the model has {} positions, and none is left; shorten it",
               prompt, max_positions);
  }
  if (wanted.value_or(1) > most) {
    base::fail(ErrorKind::usage,
               "--max-tokens {} after {}: the model has {} positions; give at most {}", *wanted,
               prompt, max_positions, most);
  }
  return wanted.value_or(std::min(config::kUsualTextTokens, most));
}

}  // namespace

std::vector<std::string> prompts_in(const std::string& text, const std::string& path) {
  std::vector<std::string> prompts;
  std::string_view rest = data::without_byte_order_mark(text);
  for (std::int64_t number = 1; !rest.empty(); ++number) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == line.npos) continue;
    const std::string place = fmt::format("--prompts {}: line {}", path, number);
    prompts.push_back(path.ends_with(".jsonl") ? prompt_of(line, place) : std::string(line));
  }
  if (prompts.empty()) base::fail(ErrorKind::data, "--prompts {}: the file has no prompt", path);
  return prompts;
}

std::vector<Prompt> read_prompts(const config::GenerateConfig& generate,
                                 const data::Tokenizer& tokenizer, std::int64_t max_positions) {
  const bool has_bytes = tokenizer.kind() == data::TokenizerKind::bytes;
  // A generous bound: a token has a few bytes.
  const std::int64_t bytes_per_token = has_bytes ? 1 : 32;
  const std::int64_t most_bytes = max_positions * bytes_per_token;
  const Texts texts = texts_of(generate, most_bytes);
  std::vector<Prompt> prompts;
  for (const std::string& text : texts.all) {
    const std::string name = texts.are_numbered ? fmt::format("prompt {}", prompts.size() + 1)
                                                : std::string("the prompt");
    // Checked before tokenizing: a truncated prompt may end within a character.
    if (std::ssize(text) > most_bytes) {
      base::fail(ErrorKind::usage,
                 "{} has more than {} bytes: the model has {} positions; shorten it", name,
                 most_bytes, max_positions);
    }
    prompts.push_back({.text = text, .tokens = data::prompt_tokens(tokenizer, text, name)});
    const std::int64_t count = data::prompt_length(text, prompts.back().tokens);
    prompts.back().max_tokens =
        continuation_length(generate.max_tokens, count, max_positions,
                            fmt::format("{} ({} {})", name, count, has_bytes ? "bytes" : "tokens"));
  }
  return prompts;
}

}  // namespace dtrain::commands
