// Bytes as a safetensors file: what is taken can be read to the last byte, everything else is
// refused.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "dtrain/checkpoint/format/safetensors.h"
#include "fuzz/outcome.h"

namespace {

namespace format = dtrain::checkpoint::format;
using dtrain::fuzz::require;

void read_all(const std::string& path) {
  const auto file = format::SafetensorsFile::open(path);
  unsigned sum = 0;
  for (const format::TensorView& tensor : file.tensors()) {
    std::int64_t num_bytes = format::size_of(tensor.dtype);
    for (const std::int64_t size : tensor.shape) num_bytes *= size;
    require(num_bytes == std::ssize(tensor.bytes), "bytes fit the shape");
    require(file.find(tensor.name) == &tensor, "a tensor is found by its name");
    for (const std::byte byte : tensor.bytes) sum += static_cast<unsigned>(byte);
  }
  require(sum <= 255U * file.bytes().size(), "no byte counts twice");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const int kMemory = ::memfd_create("input", 0);
  static const std::string kPath = "/proc/self/fd/" + std::to_string(kMemory);
  require(::ftruncate(kMemory, 0) == 0, "memory can be emptied");
  require(::pwrite(kMemory, data, size, 0) == static_cast<ssize_t>(size), "memory can be written");
  dtrain::fuzz::parse_or_refuse(kPath, [] { read_all(kPath); });
  return 0;
}
