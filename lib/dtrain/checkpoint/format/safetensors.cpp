#include "dtrain/checkpoint/format/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "dtrain/base/error.h"
#include "dtrain/checkpoint/format/strict_json.h"

namespace dtrain::checkpoint::format {

namespace {

static_assert(std::endian::native == std::endian::little, "tensors are read in place");

using base::ErrorKind;
using Json = nlohmann::json;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr int kHeaderDepth = 3;                         // file, tensor, shape, number

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

/// Returns whether a file begins like text. A safetensors file begins with zeros in its length.
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

  void parse(std::vector<TensorView>& tensors, Metadata& metadata);

 private:
  [[noreturn]] void refuse(std::string_view found) const;
  [[noreturn]] void refuse_tensor(std::string_view name, std::string_view found) const;
  [[nodiscard]] std::span<const std::byte> find_header();
  [[nodiscard]] Json parse_json(std::span<const std::byte> header) const;
  [[nodiscard]] TensorView parse_tensor(const std::string& name, const Json& entry) const;
  [[nodiscard]] Dtype parse_dtype(const std::string& name, const Json& value) const;
  [[nodiscard]] std::vector<std::int64_t> parse_numbers(const std::string& name, const char* key,
                                                        const Json& entry) const;
  [[nodiscard]] Metadata parse_metadata(const Json& value) const;
  void check_tiling(const std::vector<TensorView>& tensors) const;

  const base::MappedFile& file_;
  std::span<const std::byte> data_;
};

void HeaderParser::refuse(std::string_view found) const {
  fail(ErrorKind::checkpoint, "safetensors file '{}' {}; the file is damaged or of another format",
       file_.path(), found);
}

void HeaderParser::refuse_tensor(std::string_view name, std::string_view found) const {
  refuse(fmt::format("has a bad tensor '{}': {}", name, found));
}

void HeaderParser::parse(std::vector<TensorView>& tensors, Metadata& metadata) {
  const Json root = parse_json(find_header());
  if (!root.is_object()) refuse("has a header that is no JSON object");
  for (const auto& [name, value] : root.items()) {
    if (name == "__metadata__") {
      metadata = parse_metadata(value);
    } else {
      tensors.push_back(parse_tensor(name, value));
    }
  }
  // Empty tensors share their begin with a neighbour and come before it.
  std::sort(tensors.begin(), tensors.end(), [](const TensorView& a, const TensorView& b) {
    return std::pair(a.bytes.data(), a.bytes.size()) < std::pair(b.bytes.data(), b.bytes.size());
  });
  check_tiling(tensors);
}

std::span<const std::byte> HeaderParser::find_header() {
  const auto bytes = file_.bytes();
  if (bytes.size() < kLengthBytes) {
    refuse(fmt::format("is truncated: {} bytes", bytes.size()));
  }
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  if (is_text(bytes)) {
    fail(ErrorKind::checkpoint,
         "'{}' is text, where a model file in the safetensors format is expected; give "
         "RUN/final/model.safetensors, or another model file",
         file_.path());
  }
  if (length > kMaxHeaderBytes) {
    refuse(fmt::format("claims a header of {} bytes, at most {} are allowed", length,
                       kMaxHeaderBytes));
  }
  if (length > bytes.size() - kLengthBytes) {
    refuse(fmt::format("is truncated: a header of {} bytes in a file of {}", length, bytes.size()));
  }
  data_ = bytes.subspan(kLengthBytes + length);
  return bytes.subspan(kLengthBytes, length);
}

Json HeaderParser::parse_json(std::span<const std::byte> header) const {
  return parse_strictly(
      {reinterpret_cast<const char*>(header.data()), header.size()}, kHeaderDepth,
      [this](std::string_view found) { refuse("has a header " + std::string(found)); });
}

TensorView HeaderParser::parse_tensor(const std::string& name, const Json& entry) const {
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") ||
      !entry.contains("shape") || !entry.contains("data_offsets")) {
    refuse_tensor(name, "it needs dtype, shape and data_offsets and nothing else");
  }
  TensorView tensor{.name = name,
                    .dtype = parse_dtype(name, entry["dtype"]),
                    .shape = parse_numbers(name, "shape", entry),
                    .bytes = {}};
  const auto offsets = parse_numbers(name, "data_offsets", entry);
  const auto available = static_cast<std::int64_t>(data_.size());
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > available) {
    refuse_tensor(
        name, fmt::format("data_offsets do not lie in order within {} bytes of data", available));
  }
  std::int64_t num_bytes = size_of(tensor.dtype);
  // A zero would hide that the product of the other sizes does not fit.
  for (const std::int64_t size : tensor.shape) {
    if (size != 0 && __builtin_mul_overflow(num_bytes, size, &num_bytes)) {
      refuse_tensor(name, "its shape is too large");
    }
  }
  if (std::find(tensor.shape.begin(), tensor.shape.end(), 0) != tensor.shape.end()) num_bytes = 0;
  if (num_bytes != offsets[1] - offsets[0]) {
    refuse_tensor(name, fmt::format("dtype and shape need {} bytes, data_offsets give {}",
                                    num_bytes, offsets[1] - offsets[0]));
  }
  tensor.bytes =
      data_.subspan(static_cast<std::size_t>(offsets[0]), static_cast<std::size_t>(num_bytes));
  return tensor;
}

Dtype HeaderParser::parse_dtype(const std::string& name, const Json& value) const {
  if (value.is_string()) {
    if (const auto dtype = dtype_named(value.get_ref<const std::string&>())) return *dtype;
  }
  refuse_tensor(name, fmt::format("unknown dtype {}", value.dump()));
}

std::vector<std::int64_t> HeaderParser::parse_numbers(const std::string& name, const char* key,
                                                      const Json& entry) const {
  const Json& list = entry[key];
  if (!list.is_array()) refuse_tensor(name, fmt::format("{} is no list", key));
  std::vector<std::int64_t> numbers;
  for (const Json& value : list) {
    if (!value.is_number_unsigned() ||
        value.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
      refuse_tensor(name, fmt::format("{} holds {}, which is no size", key, value.dump()));
    }
    numbers.push_back(value.get<std::int64_t>());
  }
  return numbers;
}

Metadata HeaderParser::parse_metadata(const Json& value) const {
  if (!value.is_object()) refuse("has __metadata__ that is no JSON object");
  Metadata metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) refuse(fmt::format("has __metadata__ '{}' that is no string", key));
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

void HeaderParser::check_tiling(const std::vector<TensorView>& tensors) const {
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

}  // namespace

std::string_view name_of(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].name; }

std::optional<Dtype> dtype_named(std::string_view name) {
  for (const DtypeInfo& info : kDtypes) {
    if (info.name == name) return info.dtype;
  }
  return std::nullopt;
}

std::int64_t size_of(Dtype dtype) { return kDtypes[static_cast<std::size_t>(dtype)].size; }

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  SafetensorsFile result(base::MappedFile::open(path, kRole));
  HeaderParser(result.file_).parse(result.tensors_, result.metadata_);
  return result;
}

const TensorView* SafetensorsFile::find(std::string_view name) const noexcept {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [&](const TensorView& tensor) { return tensor.name == name; });
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
