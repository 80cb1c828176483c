#include "dtrain/metrics/event_record.h"

#include <array>
#include <bit>
#include <cstring>

namespace dtrain::metrics {
namespace {

// Numbers of fields, of event.proto, summary.proto, tensor.proto and tensor_shape.proto of
// TensorFlow.
namespace event {
constexpr std::uint64_t kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
}
namespace summary {
constexpr std::uint64_t kValue = 1, kTag = 1, kSimpleValue = 2, kTensor = 8, kMetadata = 9;
constexpr std::uint64_t kPluginData = 1, kPluginName = 1;
}  // namespace summary
namespace tensor {
constexpr std::uint64_t kDtype = 1, kShape = 2, kStringValue = 8, kDim = 2, kSize = 1;
constexpr std::uint64_t kTypeString = 7;
}  // namespace tensor
constexpr std::uint64_t kStatus = 1, kStatusStart = 1;  // of a session log

constexpr std::array<std::uint32_t, 256> kCrcTable = [] {
  constexpr std::uint32_t kReversedPolynomial = 0x82F63B78;
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < table.size(); ++byte) {
    std::uint32_t rest = byte;
    for (int bit = 0; bit < 8; ++bit) {
      rest = (rest >> 1) ^ ((rest & 1) != 0 ? kReversedPolynomial : 0);
    }
    table[byte] = rest;
  }
  return table;
}();

// A CRC of bytes that hold CRCs would be weak: TFRecord files turn each and add a constant.
std::uint32_t masked_crc(std::string_view bytes) {
  constexpr std::uint32_t kMask = 0xA282EAD8;
  return std::rotr(crc32c(bytes), 15) + kMask;
}

template <typename Number>
std::string little_endian(Number number) {
  static_assert(std::endian::native == std::endian::little);
  std::string bytes(sizeof(number), '\0');
  std::memcpy(bytes.data(), &number, sizeof(number));
  return bytes;
}

/// A message in protobuf's encoding, field by field.
class Message {
 public:
  Message& number(std::uint64_t field, std::uint64_t value) {
    constexpr std::uint64_t kVarint = 0;
    add_key(field, kVarint);
    add_varint(value);
    return *this;
  }
  Message& real64(std::uint64_t field, double value) {
    constexpr std::uint64_t kFixed64 = 1;
    add_key(field, kFixed64);
    bytes_ += little_endian(value);
    return *this;
  }
  Message& real32(std::uint64_t field, float value) {
    constexpr std::uint64_t kFixed32 = 5;
    add_key(field, kFixed32);
    bytes_ += little_endian(value);
    return *this;
  }
  Message& bytes(std::uint64_t field, std::string_view value) {
    constexpr std::uint64_t kLengthDelimited = 2;
    add_key(field, kLengthDelimited);
    add_varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(std::uint64_t field, const Message& value) { return bytes(field, value.bytes_); }

  [[nodiscard]] const std::string& text() const { return bytes_; }

 private:
  void add_key(std::uint64_t field, std::uint64_t type) { add_varint(field << 3 | type); }
  // Seven bits a byte, the lowest first; the top bit says that more follow.
  void add_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>((value & 0x7F) | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

Message event_at(const EventTime& at) {
  return Message()
      .real64(event::kWallTime, at.wall_seconds)
      .number(event::kStep, static_cast<std::uint64_t>(at.step));
}

// A record of a TFRecord file: length, its CRC, the bytes, their CRC.
std::string framed(const Message& event) {
  const std::string length = little_endian(static_cast<std::uint64_t>(event.text().size()));
  return length + little_endian(masked_crc(length)) + event.text() +
         little_endian(masked_crc(event.text()));
}

}  // namespace

std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t rest = 0xFFFFFFFF;
  for (const char byte : bytes) {
    rest = (rest >> 8) ^ kCrcTable[(rest ^ static_cast<unsigned char>(byte)) & 0xFF];
  }
  return ~rest;
}

std::string version_record(double wall_seconds) {
  return framed(
      Message().real64(event::kWallTime, wall_seconds).bytes(event::kFileVersion, "brain.Event:2"));
}

std::string start_record(const EventTime& at) {
  return framed(event_at(at).message(event::kSessionLog, Message().number(kStatus, kStatusStart)));
}

std::string scalars_record(const EventTime& at, std::span<const Scalar> scalars) {
  Message values;
  for (const Scalar& scalar : scalars) {
    values.message(summary::kValue,
                   Message()
                       .bytes(summary::kTag, scalar.tag)
                       .real32(summary::kSimpleValue, static_cast<float>(scalar.value)));
  }
  return framed(event_at(at).message(event::kSummary, values));
}

std::string text_record(const EventTime& at, std::string_view tag, std::string_view text) {
  const Message plugin = Message().bytes(summary::kPluginName, "text");
  const Message shape = Message().message(tensor::kDim, Message().number(tensor::kSize, 1));
  const Message value =
      Message()
          .bytes(summary::kTag, tag)
          .message(summary::kTensor, Message()
                                         .number(tensor::kDtype, tensor::kTypeString)
                                         .message(tensor::kShape, shape)
                                         .bytes(tensor::kStringValue, text))
          .message(summary::kMetadata, Message().message(summary::kPluginData, plugin));
  return framed(event_at(at).message(event::kSummary, Message().message(summary::kValue, value)));
}

}  // namespace dtrain::metrics
