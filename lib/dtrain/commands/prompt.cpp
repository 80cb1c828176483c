#include "dtrain/commands/prompt.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "dtrain/base/error.h"

namespace dtrain::commands {
namespace {

[[noreturn]] void refuse(const std::string& name) {
  base::fail(base::ErrorKind::data, "prompt '{}' cannot be read: {}", name, std::strerror(errno));
}

std::string read_all(int fd, const std::string& name, std::int64_t max_bytes) {
  std::string text;
  std::array<char, 4096> buffer;
  while (static_cast<std::int64_t>(text.size()) <= max_bytes) {
    const ssize_t count = ::read(fd, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) refuse(name);
    if (count == 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
  return text;
}

}  // namespace

std::string read_prompt(const config::GenerateConfig& generate, std::int64_t max_bytes) {
  constexpr std::string_view kStandardInput = "-";
  if (generate.prompt == kStandardInput || generate.prompt_file == kStandardInput) {
    return read_all(STDIN_FILENO, "standard input", max_bytes);
  }
  if (generate.prompt_file.empty()) return generate.prompt;
  const int fd = ::open(generate.prompt_file.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) refuse(generate.prompt_file);
  std::string text = read_all(fd, generate.prompt_file, max_bytes);
  ::close(fd);
  return text;
}

}  // namespace dtrain::commands
