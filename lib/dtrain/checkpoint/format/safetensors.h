// Model files: named tensors as bytes, and their checksum (docs/formats/model.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/base/io/mapped_file.h"

namespace dtrain::checkpoint::format {

/// What a file begins with: the length of its header in bytes.
inline constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);
/// The format's own limit of that length.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

enum class Dtype { boolean, u8, i8, u16, i16, f16, bf16, u32, i32, f32, u64, i64, f64 };

/// The format's word: "F32", "BF16", "BOOL", ...
[[nodiscard]] std::string_view name_of(Dtype dtype);
[[nodiscard]] std::optional<Dtype> dtype_named(std::string_view name);
/// Bytes per element.
[[nodiscard]] std::int64_t size_of(Dtype dtype);
/// Bytes of a tensor; nothing where the product of its sizes other than 0 is too large.
[[nodiscard]] std::optional<std::int64_t> bytes_of(Dtype dtype,
                                                   std::span<const std::int64_t> shape);

/// The element whose size_of(dtype) bytes begin at `bytes`, aligned or not; of integers beyond 2^53
/// the nearest double.
[[nodiscard]] double value_at(Dtype dtype, const std::byte* bytes);

using Metadata = std::map<std::string, std::string>;

/// A tensor of a file being read. `bytes` lies in the file's mapping: little-endian, in a foreign
/// file not necessarily aligned, from the first element to the last.
struct TensorView {
  std::string name{};
  Dtype dtype = Dtype::f32;
  std::vector<std::int64_t> shape{};
  std::span<const std::byte> bytes{};
  /// Elements from one index to the next, of each dim; empty: row-major without gaps, as in all
  /// files but those of torch.save.
  std::vector<std::int64_t> strides{};
};

/// A safetensors file, mapped for reading, every claim of its header checked: what a TensorView
/// gives always fits its dtype and shape.
///
/// Throws:  open(): Error{checkpoint} naming the file and, where there is one, the tensor: missing,
///          truncated, malformed header, unknown dtype, offsets that leave gaps, overlap or do not
///          fit the shape, duplicate names.
/// Threads: any number of readers.
class SafetensorsFile {
 public:
  [[nodiscard]] static SafetensorsFile open(const std::string& path);
  /// Of a file that is open already. Throws: as open().
  [[nodiscard]] static SafetensorsFile parse(base::MappedFile file);

  /// In the order of their bytes in the file.
  [[nodiscard]] std::span<const TensorView> tensors() const noexcept { return tensors_; }
  /// Null if there is no tensor of that name.
  [[nodiscard]] const TensorView* find(std::string_view name) const noexcept;
  /// Throws: Error{checkpoint} naming the file and the tensor if it is not there.
  [[nodiscard]] const TensorView& at(std::string_view name) const;
  [[nodiscard]] const Metadata& metadata() const noexcept { return metadata_; }
  [[nodiscard]] const std::string& path() const noexcept { return file_.path(); }
  /// All of the file.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return file_.bytes(); }

 private:
  explicit SafetensorsFile(base::MappedFile file) : file_(std::move(file)) {}

  base::MappedFile file_;
  std::vector<TensorView> tensors_;
  Metadata metadata_;
};

/// How tensors lie in one file: the bytes before the data, and the order of the data by index.
struct FilePlan {
  std::string header;
  std::vector<std::size_t> order;
};

/// Wider dtypes first, else in the given order; the data starts at a multiple of 64 bytes.
///
/// Throws: Error{internal} if bytes do not fit the shape or a name is given twice.
[[nodiscard]] FilePlan plan_safetensors(std::span<const TensorView> tensors,
                                        const Metadata& metadata);

/// Metadata key of "xxh3 0123456789abcdef": a checksum of the tensors and of dtrain's own metadata.
/// Other readers of safetensors ignore the key, and may keep it when they write the tensors anew.
inline constexpr const char* kChecksumKey = "dtrain.checksum";
inline constexpr std::string_view kBlankChecksum = "xxh3 0000000000000000";

/// The checksum of tensors that come one at a time. Neither their order nor the layout of the
/// file's header changes it.
///
/// Threads: one caller.
class ContentChecksum {
 public:
  /// Name, dtype and shape of `tensor`, and its bytes.
  void add(const TensorView& tensor, std::span<const std::byte> bytes);
  /// The value of kChecksumKey in a file of these tensors with `metadata`, which may have the key.
  [[nodiscard]] std::string text(const Metadata& metadata) const;

 private:
  std::map<std::string, std::string> tensors_;  // by name
};

/// Where the value of kChecksumKey begins in a header of plan_safetensors whose metadata has it.
[[nodiscard]] std::size_t find_checksum(std::string_view header);

/// Reads all tensors. Returns false if the file has no checksum, as files of other writers.
///
/// Throws:  Error{checkpoint} naming the file if its content is not what dtrain wrote.
/// Threads: any number of callers.
[[nodiscard]] bool verify_checksum(const SafetensorsFile& file);

}  // namespace dtrain::checkpoint::format
