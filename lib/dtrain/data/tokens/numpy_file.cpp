#include "dtrain/data/tokens/numpy_file.h"

#include <charconv>
#include <cstring>
#include <string>

#include "dtrain/base/text/text.h"

namespace dtrain::data {
namespace {

using base::ErrorKind;

template <typename... Args>
[[noreturn]] void refuse_array(const base::InputFile& file, fmt::format_string<Args...> found,
                               Args&&... args) {
  base::fail(ErrorKind::data, "NumPy token file '{}' {}", file.path(),
             fmt::format(found, std::forward<Args>(args)...));
}

/// Returns the text between `key` and `end`; empty if `key` is missing.
std::string_view python_value_of(std::string_view header, std::string_view key,
                                 std::string_view end) {
  const std::size_t at = header.find(key);
  if (at == header.npos) return {};
  const std::string_view rest = header.substr(at + key.size());
  return rest.substr(0, rest.find(end));
}

/// The array's header: a Python dictionary literal, `text`.
struct ArrayHeader {
  std::string_view text;
  std::size_t bytes;  ///< including the magic, version and length
};

ArrayHeader array_header_of(const base::InputFile& file, std::string_view start) {
  constexpr std::size_t kVersionAt = kNumpyMagic.size();
  constexpr std::size_t kLengthAt = kVersionAt + 2;
  const std::size_t length_bytes = start.size() > kVersionAt && start[kVersionAt] == 1 ? 2 : 4;
  const std::size_t text_at = kLengthAt + length_bytes;
  if (start.size() < text_at)
    refuse_array(file, "is truncated: {} bytes; copy it again", file.size());
  const int version = start[kVersionAt];
  if (version < 1 || version > 3) {
    refuse_array(
        file, "has format version {}, but only 1 to 3 are supported; save it again with numpy.save",
        version);
  }
  std::uint32_t length = 0;
  std::memcpy(&length, start.data() + kLengthAt, length_bytes);
  if (start.size() - text_at < length) {
    refuse_array(file, "is truncated: its header has {} bytes, but only {} follow; copy it again",
                 length, start.size() - text_at);
  }
  return {.text = start.substr(text_at, length), .bytes = text_at + length};
}

NumberType array_type_of(const base::InputFile& file, std::string_view name) {
  if (name.starts_with('>')) {
    refuse_array(file,
                 "is byte-swapped: its type is {}; save it as little-endian: array.astype('<{}')",
                 base::printable(name), base::printable(name.substr(1)));
  }
  const bool is_whole = name.size() == 3 && (name[1] == 'u' || name[1] == 'i');
  const std::int64_t bytes = is_whole ? name[2] - '0' : 0;
  if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8) {
    refuse_array(
        file, "holds {}, but tokens must be integers; save them as '<u2' or '<u4'",
        name.empty() ? "records of several fields" : fmt::format("'{}'", base::printable(name)));
  }
  return {.bytes = bytes, .is_signed = name[1] == 'i'};
}

/// Parses the length of a one-dimensional array from "N,".
std::int64_t array_length_of(const base::InputFile& file, std::string_view shape) {
  std::int64_t length = 0;
  const auto [end, error] = std::from_chars(shape.data(), shape.data() + shape.size(), length);
  if (error != std::errc() || std::string_view(end, shape.data() + shape.size()) != ",") {
    refuse_array(file,
                 "has shape ({}), but tokens must be one-dimensional; save it flat: array.ravel()",
                 base::printable(shape));
  }
  return length;
}

}  // namespace

NumpyArray read_numpy_header(const base::InputFile& file, std::string_view start) {
  const ArrayHeader header = array_header_of(file, start);
  const NumberType type = array_type_of(file, python_value_of(header.text, "'descr': '", "'"));
  const std::int64_t length =
      array_length_of(file, python_value_of(header.text, "'shape': (", ")"));
  const auto header_bytes = static_cast<std::int64_t>(header.bytes);
  const std::int64_t there = file.size() - header_bytes;
  if (there % type.bytes != 0 || there / type.bytes != length) {
    refuse_array(
        file, "{}: its header gives {} numbers of {} bytes, but {} bytes follow; copy it again",
        there / type.bytes < length ? "is truncated" : "is too long", length, type.bytes, there);
  }
  return {.type = type, .header_bytes = header_bytes};
}

}  // namespace dtrain::data
