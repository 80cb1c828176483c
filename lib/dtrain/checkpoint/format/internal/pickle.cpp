#include "dtrain/checkpoint/format/internal/pickle.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace dtrain::checkpoint::format {
namespace {

// Limits memory: one byte of a pickle may need a hundred, and memoized names repeat at no cost.
constexpr std::int64_t kMostOpcodes = std::int64_t{1} << 22;
constexpr std::size_t kMostGlobalBytes = std::size_t{1} << 20;

}  // namespace

/// Interprets the opcodes of a pickle on a stack of values.
///
/// Source: Python's pickletools.py, which describes each opcode.
class PickleReader {
 public:
  using Kind = PickleValue::Kind;

  PickleReader(Pickle& pickle, std::span<const std::byte> bytes, const Refuse& refuse)
      : values_(pickle.values_), bytes_(bytes), refuse_(refuse) {}

  std::size_t read() {
    std::int64_t num_opcodes = 0;
    for (std::uint8_t code = next(); code != '.'; code = next()) {
      if (++num_opcodes > kMostOpcodes) {
        refuse_(fmt::format("holds a pickle of more than {} opcodes; save the weights alone",
                            kMostOpcodes));
      }
      const bool is_known = read_constant(code) || read_text(code) || read_memo(code) ||
                            read_tuple(code) || read_collection(code) || read_call(code);
      if (!is_known) {
        refuse_(
            fmt::format("holds an opcode 0x{:02x} in its pickle that torch.save does not write; "
                        "save the weights alone",
                        code));
      }
    }
    return pop();
  }

 private:
  [[noreturn]] void refuse_damage() const {
    refuse_("holds a pickle that is truncated or malformed; copy it again");
    __builtin_unreachable();
  }

  std::span<const std::byte> take(std::uint64_t count) {
    if (count > bytes_.size()) refuse_damage();
    const auto taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }

  std::uint8_t next() { return std::to_integer<std::uint8_t>(take(1)[0]); }

  // Reads a little-endian unsigned number of `size` bytes.
  std::uint64_t number(std::uint64_t size) {
    std::uint64_t value = 0;
    std::uint64_t shift = 0;
    for (const std::byte byte : take(size)) {
      value |= std::to_integer<std::uint64_t>(byte) << shift;
      shift += 8;
    }
    return value;
  }

  std::string text(std::uint64_t size) {
    const auto taken = take(size);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }

  std::string line() {
    const auto end = std::ranges::find(bytes_, std::byte{'\n'});
    if (end == bytes_.end()) refuse_damage();
    std::string found = text(static_cast<std::uint64_t>(end - bytes_.begin()));
    take(1);
    return found;
  }

  void push(PickleValue value) {
    stack_.push_back(values_.size());
    values_.push_back(std::move(value));
  }

  void push_integer(std::int64_t value) { push({.kind = Kind::integer, .integer = value}); }

  std::size_t pop() {
    if (stack_.size() <= floor()) refuse_damage();
    const std::size_t top = stack_.back();
    stack_.pop_back();
    return top;
  }

  [[nodiscard]] std::size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }

  PickleValue& top() {
    if (stack_.size() <= floor()) refuse_damage();
    return values_[stack_.back()];
  }

  // Pops the `count` topmost values, in the order in which they were pushed.
  std::vector<std::size_t> pop_many(std::size_t count) {
    if (stack_.size() - floor() < count) refuse_damage();
    const auto begin = stack_.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<std::size_t> taken(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    return taken;
  }

  // Pops all values above the last mark.
  std::vector<std::size_t> pop_to_mark() {
    if (marks_.empty()) refuse_damage();
    std::vector<std::size_t> taken = pop_many(stack_.size() - floor());
    marks_.pop_back();
    return taken;
  }

  // Pushes a two's complement integer of any width; one wider than int64 becomes an `other` value.
  void push_long(std::uint64_t size) {
    if (size > sizeof(std::int64_t)) {
      take(size);
      return push({});
    }
    std::uint64_t value = number(size);
    const std::uint64_t num_bits = 8 * size;
    const bool is_negative = size > 0 && ((value >> (num_bits - 1)) & 1) != 0;
    if (is_negative && num_bits < 64) value |= ~std::uint64_t{0} << num_bits;
    push_integer(static_cast<std::int64_t>(value));
  }

  bool read_constant(std::uint8_t code) {
    switch (code) {
      case 0x80:  // PROTO
        return take(1), true;
      case 0x95:  // FRAME
        return take(8), true;
      case 'N':
        return push({}), true;
      case 'G':  // BINFLOAT
        return take(8), push({}), true;
      case 0x88:  // NEWTRUE
      case 0x89:  // NEWFALSE
        return push_integer(code == 0x88 ? 1 : 0), true;
      case 'K':
        return push_integer(static_cast<std::int64_t>(number(1))), true;
      case 'M':
        return push_integer(static_cast<std::int64_t>(number(2))), true;
      case 'J':
        return push_integer(static_cast<std::int32_t>(number(4))), true;
      case 0x8a:  // LONG1
        return push_long(number(1)), true;
      case 0x8b:  // LONG4
        return push_long(number(4)), true;
      default:
        return false;
    }
  }

  bool read_text(std::uint8_t code) {
    std::uint64_t length_bytes = 0;
    switch (code) {
      case 'U':   // SHORT_BINSTRING
      case 'C':   // SHORT_BINBYTES
      case 0x8c:  // SHORT_BINUNICODE
        length_bytes = 1;
        break;
      case 'T':  // BINSTRING
      case 'B':  // BINBYTES
      case 'X':  // BINUNICODE
        length_bytes = 4;
        break;
      case 0x8d:  // BINUNICODE8
      case 0x8e:  // BINBYTES8
      case 0x96:  // BYTEARRAY8
        length_bytes = 8;
        break;
      default:
        return false;
    }
    push({.kind = Kind::text, .text = text(number(length_bytes))});
    return true;
  }

  void remember(std::uint64_t key) {
    (void)top();  // refuses an empty stack
    memo_[key] = stack_.back();
  }

  void recall(std::uint64_t key) {
    const auto found = memo_.find(key);
    if (found == memo_.end()) refuse_damage();
    stack_.push_back(found->second);
  }

  bool read_memo(std::uint8_t code) {
    switch (code) {
      case 'q':  // BINPUT
        return remember(number(1)), true;
      case 'r':  // LONG_BINPUT
        return remember(number(4)), true;
      case 0x94:  // MEMOIZE
        return remember(memo_.size()), true;
      case 'h':  // BINGET
        return recall(number(1)), true;
      case 'j':  // LONG_BINGET
        return recall(number(4)), true;
      default:
        return false;
    }
  }

  void push_sequence(std::vector<std::size_t> items) {
    push({.kind = Kind::sequence, .items = std::move(items)});
  }

  bool read_tuple(std::uint8_t code) {
    switch (code) {
      case '(':
        return marks_.push_back(stack_.size()), true;
      case ']':
      case ')':
        return push_sequence({}), true;
      case 't':
      case 'l':
        return push_sequence(pop_to_mark()), true;
      case 0x85:  // TUPLE1
      case 0x86:  // TUPLE2
      case 0x87:  // TUPLE3
        return push_sequence(pop_many(code - 0x84U)), true;
      case 0x8f:  // EMPTY_SET
        return push({}), true;
      case 0x91:  // FROZENSET
        return pop_to_mark(), push({}), true;
      case '0':
        return pop(), true;
      case '1':
        return pop_to_mark(), true;
      case '2':
        (void)top();
        return stack_.push_back(stack_.back()), true;
      default:
        return false;
    }
  }

  // Adds to the collection on top of the stack; ignores the content of other objects.
  void add(Kind kind, const std::vector<std::size_t>& items) {
    PickleValue& to = top();
    if (kind == Kind::dict && items.size() % 2 != 0) refuse_damage();
    if (to.kind == kind) to.items.insert(to.items.end(), items.begin(), items.end());
  }

  bool read_collection(std::uint8_t code) {
    switch (code) {
      case '}':
        return push({.kind = Kind::dict}), true;
      case 'd':
        push({.kind = Kind::dict, .items = pop_to_mark()});
        if (top().items.size() % 2 != 0) refuse_damage();
        return true;
      case 's':
        return add(Kind::dict, pop_many(2)), true;
      case 'u':
        return add(Kind::dict, pop_to_mark()), true;
      case 'a':
        return add(Kind::sequence, pop_many(1)), true;
      case 'e':
        return add(Kind::sequence, pop_to_mark()), true;
      case 0x90:  // ADDITEMS, of a set
        return add(Kind::other, pop_to_mark()), true;
      default:
        return false;
    }
  }

  void push_global(const std::string& module, const std::string& name) {
    global_bytes_ += module.size() + name.size();
    if (global_bytes_ > kMostGlobalBytes) {
      refuse_(
          fmt::format("has more than {} bytes of class and function names; save the weights alone",
                      kMostGlobalBytes));
    }
    push({.kind = Kind::global, .text = module + " " + name});
  }

  // Some dictionaries are created by a call and filled afterwards.
  void push_call(std::vector<std::size_t> call) {
    const std::string& callable = values_[call.front()].text;
    const bool is_dict =
        callable == "collections OrderedDict" || callable == "collections defaultdict";
    if (is_dict) return push({.kind = Kind::dict});
    push({.kind = Kind::object, .items = std::move(call)});
  }

  bool read_call(std::uint8_t code) {
    switch (code) {
      case 'c': {
        const std::string module = line();
        return push_global(module, line()), true;
      }
      case 0x93: {  // STACK_GLOBAL
        const std::vector<std::size_t> names = pop_many(2);
        return push_global(values_[names[0]].text, values_[names[1]].text), true;
      }
      case 'R':
      case 0x81:  // NEWOBJ
        return push_call(pop_many(2)), true;
      case 0x92: {  // NEWOBJ_EX
        std::vector<std::size_t> call = pop_many(3);
        call.pop_back();
        return push_call(std::move(call)), true;
      }
      case 'b':  // BUILD: the state of the object below it
        pop();
        return (void)top(), true;
      case 'Q':  // BINPERSID
        return push({.kind = Kind::persistent, .items = pop_many(1)}), true;
      default:
        return false;
    }
  }

  std::vector<PickleValue>& values_;
  std::span<const std::byte> bytes_;
  const Refuse& refuse_;
  std::vector<std::size_t> stack_;  // indices in values_
  std::vector<std::size_t> marks_;  // sizes of the stack
  std::unordered_map<std::uint64_t, std::size_t> memo_;
  std::size_t global_bytes_ = 0;  // of all names of globals
};

Pickle::Pickle(std::span<const std::byte> bytes, const Refuse& refuse) {
  root_ = PickleReader(*this, bytes, refuse).read();
}

const PickleValue* Pickle::argument(const PickleValue& object, std::size_t index) const {
  if (object.kind != PickleValue::Kind::object) return nullptr;
  const PickleValue& arguments = at(object.items[1]);
  const bool has_it =
      arguments.kind == PickleValue::Kind::sequence && index < arguments.items.size();
  return has_it ? &at(arguments.items[index]) : nullptr;
}

std::string_view Pickle::callable(const PickleValue& value) const {
  if (value.kind != PickleValue::Kind::object) return {};
  const PickleValue& found = at(value.items[0]);
  return found.kind == PickleValue::Kind::global ? std::string_view(found.text)
                                                 : std::string_view();
}

}  // namespace dtrain::checkpoint::format
