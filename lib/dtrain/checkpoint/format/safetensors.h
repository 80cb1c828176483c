// The safetensors format, with dtrain's checksum in the metadata (docs/formats/model.md).
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

/// Size in bytes of the header-length field, which begins a file.
inline constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);
/// The format's limit on the header length.
inline constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

/// Element types of the format.
enum class Dtype { boolean, u8, i8, u16, i16, f16, bf16, u32, i32, f32, u64, i64, f64 };

/// The format's name of a dtype: "F32", "BF16", "BOOL", ...
[[nodiscard]] std::string_view name_of(Dtype dtype);
[[nodiscard]] std::optional<Dtype> dtype_named(std::string_view name);
/// Bytes per element.
[[nodiscard]] std::int64_t size_of(Dtype dtype);
/// Returns the bytes of a tensor; empty if the product of its nonzero sizes overflows.
[[nodiscard]] std::optional<std::int64_t> bytes_of(Dtype dtype,
                                                   std::span<const std::int64_t> shape);

/// Converts the element at `bytes`, which need not be aligned, to double; rounds integers beyond
/// 2^53.
[[nodiscard]] double value_at(Dtype dtype, const std::byte* bytes);

using Metadata = std::map<std::string, std::string>;

/// A tensor of a mapped file. `bytes` is a view of the mapping, from the first element to the last.
/// Elements are little-endian and, in other programs' files, possibly unaligned.
struct TensorView {
  std::string name{};
  Dtype dtype = Dtype::f32;
  std::vector<std::int64_t> shape{};
  std::span<const std::byte> bytes{};
  /// Strides in elements; empty means contiguous row-major, as in all files except those of
  /// torch.save.
  std::vector<std::int64_t> strides{};
};

/// A memory-mapped safetensors file with a fully validated header: the bytes of a TensorView always
/// match its dtype and shape.
///
/// Throws:  open(): Error{checkpoint} naming the file, and the tensor if one is at fault: file
///          missing or truncated, malformed header, unknown dtype, duplicate names, or offsets that
///          leave gaps, overlap or do not match the shape.
/// Threads: any number of readers.
class SafetensorsFile {
 public:
  [[nodiscard]] static SafetensorsFile open(const std::string& path);
  /// Parses a file that is already open. Throws: as open().
  [[nodiscard]] static SafetensorsFile parse(base::MappedFile file);

  /// All tensors, in the order of their bytes in the file.
  [[nodiscard]] std::span<const TensorView> tensors() const noexcept { return tensors_; }
  /// Null if there is no tensor of that name.
  [[nodiscard]] const TensorView* find(std::string_view name) const noexcept;
  /// Returns the tensor of that name.
  ///
  /// Throws: Error{checkpoint} naming the file and the tensor if it does not exist.
  [[nodiscard]] const TensorView& at(std::string_view name) const;
  [[nodiscard]] const Metadata& metadata() const noexcept { return metadata_; }
  [[nodiscard]] const std::string& path() const noexcept { return file_.path(); }
  /// The bytes of the whole file.
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return file_.bytes(); }

 private:
  explicit SafetensorsFile(base::MappedFile file) : file_(std::move(file)) {}

  base::MappedFile file_;
  std::vector<TensorView> tensors_;
  Metadata metadata_;
};

/// A file's layout: its header bytes, and the order of the tensors as indices.
struct FilePlan {
  std::string header;
  std::vector<std::size_t> order;
};

/// Plans a file: tensors of wider dtypes first, otherwise in the given order. Data begins at a
/// multiple of 64 bytes.
///
/// Throws: Error{internal} if bytes do not match the shape or a name is given twice.
[[nodiscard]] FilePlan plan_safetensors(std::span<const TensorView> tensors,
                                        const Metadata& metadata);

/// Metadata key of the checksum of the tensors and of dtrain's metadata: "xxh3 0123456789abcdef".
/// Other programs ignore the key, and may preserve it when they rewrite the tensors.
inline constexpr const char* kChecksumKey = "dtrain.checksum";
inline constexpr std::string_view kBlankChecksum = "xxh3 0000000000000000";

/// An incremental checksum of tensors, independent of their order and of the header's layout.
///
/// Threads: one caller.
class ContentChecksum {
 public:
  /// Adds the name, dtype and shape of `tensor`, and its bytes.
  void add(const TensorView& tensor, std::span<const std::byte> bytes);
  /// Returns the value of kChecksumKey for these tensors and `metadata`; an existing key is
  /// ignored.
  [[nodiscard]] std::string text(const Metadata& metadata) const;

 private:
  std::map<std::string, std::string> tensors_;  // by name
};

/// Returns where the value of kChecksumKey begins in a header of plan_safetensors that has the key.
[[nodiscard]] std::size_t find_checksum(std::string_view header);

/// Reads all tensors and verifies the file's checksum. Returns false if the file has none, such as
/// a file of another program.
///
/// Throws:  Error{checkpoint} naming the file if the checksum does not match.
/// Threads: any number of callers.
[[nodiscard]] bool verify_checksum(const SafetensorsFile& file);

}  // namespace dtrain::checkpoint::format
