#include "dtrain/checkpoint/format/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/format/internal/strict_json.h"

namespace dtrain::checkpoint::format {

namespace {

static_assert(std::endian::native == std::endian::little, "tensors are read in place");

using base::ErrorKind;
using Json = nlohmann::json;

constexpr int kHeaderDepth = 3;  // file, tensor, shape, number

constexpr base::FileRole kRole{ErrorKind::checkpoint, "safetensors file",
                               "give a file in the safetensors format"};

struct DtypeInfo {
  Dtype dtype;
  std::string_view name;
  std::int64_t size;
};

constexpr std::array<DtypeInfo, 13> kDtypes{{{Dtype::boolean, "BOOL", 1},
                                             {Dtype::u8, "U8", 1},
                                             {Dtype::i8, "I8", 1},
                                             {Dtype::u16, "U16", 2},
                                             {Dtype::i16, "I16", 2},
                                             {Dtype::f16, "F16", 2},
                                             {Dtype::bf16, "BF16", 2},
                                             {Dtype::u32, "U32", 4},
                                             {Dtype::i32, "I32", 4},
                                             {Dtype::f32, "F32", 4},
                                             {Dtype::u64, "U64", 8},
                                             {Dtype::i64, "I64", 8},
                                             {Dtype::f64, "F64", 8}}};

/// Returns whether a file begins like text; the length field of a safetensors file contains zeros.
bool is_text(std::span<const std::byte> bytes) {
  constexpr std::size_t kExamined = 256;
  return std::ranges::all_of(bytes.first(std::min(bytes.size(), kExamined)), [](std::byte byte) {
    const auto c = std::to_integer<unsigned char>(byte);
    return c == '\t' || c == '\n' || c == '\r' || (c >= ' ' && c != 0x7f);
  });
}

/// Parses the header of one file. Its member functions throw Error{checkpoint} naming the file.
class HeaderParser {
 public:
  explicit HeaderParser(const base::MappedFile& file) : file_(file) {}

  void parse(std::vector<TensorView>& tensors, Metadata& metadata) {
    const std::span<const std::byte> header = find_header();
    const Json root = parse_strictly(
        {reinterpret_cast<const char*>(header.data()), header.size()}, kHeaderDepth,
        [this](std::string_view found) { refuse("has a header " + std::string(found)); });
    if (!root.is_object()) refuse("has a header that is not a JSON object");
    for (const auto& [name, value] : root.items()) {
      if (name == "__metadata__") {
        metadata = parse_metadata(value);
      } else {
        tensors.push_back(parse_tensor(name, value));
      }
    }
    // An empty tensor sorts before the neighbour that begins at the same offset.
    std::ranges::sort(tensors, {}, [](const TensorView& tensor) {
      return std::pair(tensor.bytes.data(), tensor.bytes.size());
    });
    check_tiling(tensors);
  }

 private:
  [[noreturn]] void refuse(std::string_view found) const {
    fail(ErrorKind::checkpoint,
         "safetensors file '{}' {}; the file is damaged or of another format: copy it again, or "
         "save it as safetensors",
         file_.path(), found);
  }

  [[noreturn]] void refuse_tensor(std::string_view name, std::string_view found) const {
    refuse(fmt::format("has an invalid tensor '{}': {}", name, found));
  }

  [[nodiscard]] std::span<const std::byte> find_header() {
    const auto bytes = file_.bytes();
    if (bytes.size() < kLengthBytes) {
      refuse(fmt::format("is truncated: {} bytes", bytes.size()));
    }
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), kLengthBytes);
    if (is_text(bytes)) {
      fail(ErrorKind::checkpoint,
           "'{}' is text, but a model file in the safetensors format is expected; give "
           "RUN/final/model.safetensors, or another model file",
           file_.path());
    }
    if (length > kMaxHeaderBytes) {
      refuse(fmt::format("claims a header of {} bytes, more than the limit of {}", length,
                         kMaxHeaderBytes));
    }
    if (length > bytes.size() - kLengthBytes) {
      refuse(fmt::format("is truncated: its header needs {} bytes, but the file has {}", length,
                         bytes.size()));
    }
    data_ = bytes.subspan(kLengthBytes + length);
    return bytes.subspan(kLengthBytes, length);
  }

  [[nodiscard]] TensorView parse_tensor(const std::string& name, const Json& entry) const {
    if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") ||
        !entry.contains("shape") || !entry.contains("data_offsets")) {
      refuse_tensor(name, "it must have the keys dtype, shape and data_offsets, and no others");
    }
    TensorView tensor{.name = name,
                      .dtype = parse_dtype(name, entry["dtype"]),
                      .shape = parse_numbers(name, "shape", entry),
                      .bytes = {}};
    const auto offsets = parse_numbers(name, "data_offsets", entry);
    const auto available = static_cast<std::int64_t>(data_.size());
    if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > available) {
      refuse_tensor(
          name, fmt::format("data_offsets are not two ascending offsets within {} bytes of data",
                            available));
    }
    const std::optional<std::int64_t> num_bytes = bytes_of(tensor.dtype, tensor.shape);
    if (!num_bytes) refuse_tensor(name, "its shape is too large");
    if (*num_bytes != offsets[1] - offsets[0]) {
      refuse_tensor(name, fmt::format("dtype and shape need {} bytes, data_offsets give {}",
                                      *num_bytes, offsets[1] - offsets[0]));
    }
    tensor.bytes =
        data_.subspan(static_cast<std::size_t>(offsets[0]), static_cast<std::size_t>(*num_bytes));
    return tensor;
  }

  [[nodiscard]] Dtype parse_dtype(const std::string& name, const Json& value) const {
    if (value.is_string()) {
      if (const auto dtype = dtype_named(value.get_ref<const std::string&>())) return *dtype;
    }
    fail(ErrorKind::checkpoint,
         "safetensors file '{}' has a tensor '{}' of the unknown dtype {}; save it as F32, F16, "
         "BF16 or F64",
         file_.path(), name, value.dump());
  }

  [[nodiscard]] std::vector<std::int64_t> parse_numbers(const std::string& name, const char* key,
                                                        const Json& entry) const {
    const Json& list = entry[key];
    if (!list.is_array()) refuse_tensor(name, fmt::format("{} is not a list", key));
    std::vector<std::int64_t> numbers;
    for (const Json& value : list) {
      const std::optional<std::int64_t> number = size_in(value);
      if (!number) {
        refuse_tensor(name, fmt::format("{} holds {}, which is not a size", key, value.dump()));
      }
      numbers.push_back(*number);
    }
    return numbers;
  }

  [[nodiscard]] Metadata parse_metadata(const Json& value) const {
    if (!value.is_object()) refuse("has __metadata__ that is not a JSON object");
    Metadata metadata;
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) refuse(fmt::format("has __metadata__ '{}' that is not a string", key));
      metadata.emplace(key, text.get<std::string>());
    }
    return metadata;
  }

  void check_tiling(const std::vector<TensorView>& tensors) const {
    const std::byte* expected = data_.data();
    for (const TensorView& tensor : tensors) {
      if (tensor.bytes.data() != expected) {
        refuse_tensor(tensor.name, "its bytes overlap another tensor's or leave a gap");
      }
      expected += tensor.bytes.size();
    }
    const auto rest = data_.data() + data_.size() - expected;
    if (rest != 0) refuse(fmt::format("has {} bytes that belong to no tensor", rest));
  }

  const base::MappedFile& file_;
  std::span<const std::byte> data_;
};

template <typename T>
T load(const std::byte* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

template <typename T>
double number(const std::byte* bytes) {
  return static_cast<double>(load<T>(bytes));
}

// Source: IEEE 754-2019, binary16: 1 sign bit, 5 exponent bits (bias 15), 10 fraction bits.
double from_half(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 0x1f;
  const int fraction = bits & 0x3ff;
  double magnitude = std::ldexp(fraction, -24);  // subnormal, or zero
  if (exponent == 0x1f) {
    magnitude = fraction == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent != 0) {
    magnitude = std::ldexp(fraction + 0x400, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

// A bfloat16 is the upper half of a float.
double from_bfloat16(std::uint16_t bits) {
  const std::uint32_t word = std::uint32_t{bits} << 16;
  float value = 0;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

}  // namespace

std::string_view name_of(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].name; }

std::optional<Dtype> dtype_named(std::string_view name) {
  const auto* const found = std::ranges::find(kDtypes, name, &DtypeInfo::name);
  return found == kDtypes.end() ? std::nullopt : std::optional(found->dtype);
}

std::int64_t size_of(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].size; }

std::optional<std::int64_t> bytes_of(Dtype dtype, std::span<const std::int64_t> shape) {
  std::int64_t bytes = size_of(dtype);
  // Skips zeros, which would hide an overflow of the other sizes.
  for (const std::int64_t size : shape) {
    if (size != 0 && __builtin_mul_overflow(bytes, size, &bytes)) return std::nullopt;
  }
  return std::ranges::find(shape, 0) == shape.end() ? bytes : 0;
}

double value_at(Dtype dtype, const std::byte* bytes) {
  switch (dtype) {
    case Dtype::boolean:
    case Dtype::u8:
      return number<std::uint8_t>(bytes);
    case Dtype::i8:
      return number<std::int8_t>(bytes);
    case Dtype::u16:
      return number<std::uint16_t>(bytes);
    case Dtype::i16:
      return number<std::int16_t>(bytes);
    case Dtype::f16:
      return from_half(load<std::uint16_t>(bytes));
    case Dtype::bf16:
      return from_bfloat16(load<std::uint16_t>(bytes));
    case Dtype::u32:
      return number<std::uint32_t>(bytes);
    case Dtype::i32:
      return number<std::int32_t>(bytes);
    case Dtype::f32:
      return number<float>(bytes);
    case Dtype::u64:
      return number<std::uint64_t>(bytes);
    case Dtype::i64:
      return number<std::int64_t>(bytes);
    case Dtype::f64:
      return number<double>(bytes);
  }
  base::fail(base::ErrorKind::internal, "cannot convert a value of an unknown dtype");
}

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  return parse(base::MappedFile::open(path, kRole));
}

SafetensorsFile SafetensorsFile::parse(base::MappedFile file) {
  SafetensorsFile result(std::move(file));
  HeaderParser(result.file_).parse(result.tensors_, result.metadata_);
  return result;
}

const TensorView* SafetensorsFile::find(std::string_view name) const noexcept {
  const auto found = std::ranges::find(tensors_, name, &TensorView::name);
  return found == tensors_.end() ? nullptr : &*found;
}

const TensorView& SafetensorsFile::at(std::string_view name) const {
  const TensorView* tensor = find(name);
  if (tensor == nullptr) {
    fail(ErrorKind::checkpoint,
         "safetensors file '{}' has no tensor '{}'; give a file of this model", path(), name);
  }
  return *tensor;
}

}  // namespace dtrain::checkpoint::format
