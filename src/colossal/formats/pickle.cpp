#include "colossal/formats/pickle.h"

#include <bit>
#include <charconv>
#include <cstring>
#include <unordered_map>

#include "colossal/base/error.h"

namespace colossal::formats {
namespace {

using PickleKind = PickleValue::Kind;

class Unpickler {
 public:
  Unpickler(std::string_view& bytes, const std::string& where) : bytes_(bytes), size_(bytes.size()), where_(where) {}

  Pickle read() {
    for (char op = next(); op != '.'; op = next())
      if (!read_constant(op) && !read_text(op) && !read_memo(op) && !read_container(op) && !read_call(op))
        fail(concat("an opcode that is not read, ", static_cast<int>(static_cast<unsigned char>(op))));
    check(marks_.empty(), "a mark without an end");
    const PickleId root = pop();
    return {std::move(values_), root};
  }

 private:
  static constexpr size_t kMaxPickleValues = 10'000'000;
  static constexpr int64_t kMaxPickleSteps = 100'000'000;

  [[noreturn]] void fail(const std::string& why) const {
    throw Error("pickle", concat(where_, ": the pickle is damaged at byte ", size_ - bytes_.size(), ": ", why));
  }
  void check(bool ok, const char* why) const {
    if (!ok) fail(why);
  }

  // Bytes.

  std::string_view take(uint64_t count) {
    check(count <= bytes_.size(), "it is cut short");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  char next() {
    check(++steps_ <= kMaxPickleSteps, "too many opcodes");
    return take(1)[0];
  }
  /// Takes an unsigned number of that many bytes, the lowest first.
  uint64_t number(int count) {
    const std::string_view taken = take(static_cast<uint64_t>(count));
    uint64_t value = 0;
    for (int i = count - 1; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(taken[static_cast<size_t>(i)]);
    return value;
  }
  std::string_view line() {
    const size_t end = bytes_.find('\n');
    check(end != std::string_view::npos, "it is cut short");
    const std::string_view taken = take(end + 1);
    return taken.substr(0, end);
  }

  // The stack, whose last mark is a floor for single values.

  size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  PickleId top() const {
    check(stack_.size() > floor(), "a value is missing");
    return stack_.back();
  }
  PickleId pop() {
    const PickleId id = top();
    stack_.pop_back();
    return id;
  }
  /// Takes the values after the last mark.
  std::vector<PickleId> pop_marked() {
    check(!marks_.empty(), "a mark is missing");
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<PickleId> taken(from, stack_.end());
    stack_.erase(from, stack_.end());
    marks_.pop_back();
    return taken;
  }
  std::vector<PickleId> pop_last(size_t count) {
    check(stack_.size() - floor() >= count, "a value is missing");
    const auto from = stack_.end() - static_cast<std::ptrdiff_t>(count);
    std::vector<PickleId> taken(from, stack_.end());
    stack_.erase(from, stack_.end());
    return taken;
  }
  void push(PickleValue value) {
    check(values_.size() < kMaxPickleValues, "too many values");
    stack_.push_back(static_cast<PickleId>(values_.size()));
    values_.push_back(std::move(value));
  }
  void push_integer(int64_t value) { push({PickleKind::Integer, value}); }
  void push_items(PickleKind kind, std::vector<PickleId> items) { push({kind, 0, 0, {}, std::move(items)}); }
  void push_text(PickleKind kind, std::string_view text) { push({kind, 0, 0, std::string(text)}); }

  // Opcodes, by what they make. Each function returns false for an opcode of others.

  void read_long(std::string_view bytes) {
    if (bytes.size() > sizeof(int64_t)) return push_text(PickleKind::BigInteger, bytes);
    uint64_t value = !bytes.empty() && (bytes.back() & '\x80') != 0 ? ~uint64_t{0} : 0;
    for (size_t i = bytes.size(); i > 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[i - 1]);
    push_integer(static_cast<int64_t>(value));
  }
  /// Reads an integer in digits. Protocol 1 spells booleans 00 and 01.
  void read_digits(std::string_view text, bool may_be_truth) {
    if (may_be_truth && (text == "00" || text == "01")) return push({PickleKind::Bool, text == "01"});
    if (text.ends_with('L')) text.remove_suffix(1);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    check(error == std::errc() && end == text.data() + text.size(), "a number of other characters than digits");
    push_integer(value);
  }
  void read_real() {
    uint64_t bits = 0;
    for (const char byte : take(8)) bits = bits << 8 | static_cast<unsigned char>(byte);
    push({PickleKind::Real, 0, std::bit_cast<double>(bits)});
  }

  bool read_constant(char op) {
    switch (op) {
      case '\x80':  // PROTO
        check(number(1) <= 5, "a protocol above 5");
        return true;
      case '\x95':  // FRAME
        check(number(8) <= bytes_.size(), "it is cut short");
        return true;
      case 'N':
        push({});
        return true;
      case '\x88':
      case '\x89':
        push({PickleKind::Bool, op == '\x88'});
        return true;
      case 'J':
        push_integer(static_cast<int32_t>(number(4)));
        return true;
      case 'K':
        push_integer(static_cast<int64_t>(number(1)));
        return true;
      case 'M':
        push_integer(static_cast<int64_t>(number(2)));
        return true;
      case '\x8a':
        read_long(take(number(1)));
        return true;
      case '\x8b':
        read_long(take(number(4)));
        return true;
      case 'I':
      case 'L':
        read_digits(line(), op == 'I');
        return true;
      case 'G':
        read_real();
        return true;
      default:
        return false;
    }
  }

  bool read_text(char op) {
    struct Row {
      char op;
      int length_bytes;
      PickleKind kind;
    };
    static constexpr Row kRows[] = {
        {'\x8c', 1, PickleKind::Text},   // SHORT_BINUNICODE
        {'X', 4, PickleKind::Text},      // BINUNICODE
        {'\x8d', 8, PickleKind::Text},   // BINUNICODE8
        {'U', 1, PickleKind::Text},      // SHORT_BINSTRING, a text of Python 2
        {'T', 4, PickleKind::Text},      // BINSTRING
        {'C', 1, PickleKind::Bytes},     // SHORT_BINBYTES
        {'B', 4, PickleKind::Bytes},     // BINBYTES
        {'\x8e', 8, PickleKind::Bytes},  // BINBYTES8
        {'\x96', 8, PickleKind::Bytes},  // BYTEARRAY8
    };
    for (const Row& row : kRows)
      if (row.op == op) {
        push_text(row.kind, take(number(row.length_bytes)));
        return true;
      }
    return false;
  }

  void put(uint64_t place) { memo_[place] = top(); }
  void get(uint64_t place) {
    const auto found = memo_.find(place);
    check(found != memo_.end(), "a memo that is not there");
    stack_.push_back(found->second);
  }

  bool read_memo(char op) {
    switch (op) {
      case 'q':
        put(number(1));
        return true;
      case 'r':
        put(number(4));
        return true;
      case '\x94':  // MEMOIZE
        put(memo_.size());
        return true;
      case 'h':
        get(number(1));
        return true;
      case 'j':
        get(number(4));
        return true;
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case '0':  // POP, of a mark too
        if (!marks_.empty() && marks_.back() == stack_.size())
          marks_.pop_back();
        else
          pop();
        return true;
      case '1':
        pop_marked();
        return true;
      case '2':
        stack_.push_back(top());
        return true;
      default:
        return false;
    }
  }

  /// Adds items to a container. The result of a call has no container of its own here, and drops them.
  void add(PickleId id, PickleKind kind, const std::vector<PickleId>& items) {
    PickleValue& value = values_[id];
    if (value.kind == PickleKind::Call) return;
    check(value.kind == kind, "items of a value that is no container of them");
    value.items.insert(value.items.end(), items.begin(), items.end());
  }

  bool read_container(char op) {
    constexpr int kMarked = -1;
    struct Row {
      char op;
      PickleKind kind;
      int items;          // how many are taken from the stack; kMarked = all after a mark
      bool adds = false;  // to the container before them; else they become a new one
    };
    static constexpr Row kRows[] = {
        {']', PickleKind::List, 0},          {')', PickleKind::Tuple, 0},        {'}', PickleKind::Dict, 0},
        {'\x8f', PickleKind::Set, 0},        {'l', PickleKind::List, kMarked},   {'t', PickleKind::Tuple, kMarked},
        {'d', PickleKind::Dict, kMarked},    {'\x91', PickleKind::Set, kMarked}, {'\x85', PickleKind::Tuple, 1},
        {'\x86', PickleKind::Tuple, 2},      {'\x87', PickleKind::Tuple, 3},     {'a', PickleKind::List, 1, true},
        {'e', PickleKind::List, -1, true},   {'s', PickleKind::Dict, 2, true},   {'u', PickleKind::Dict, -1, true},
        {'\x90', PickleKind::Set, -1, true},
    };
    for (const Row& row : kRows) {
      if (row.op != op) continue;
      std::vector<PickleId> items = row.items == kMarked ? pop_marked() : pop_last(static_cast<size_t>(row.items));
      check(row.kind != PickleKind::Dict || items.size() % 2 == 0, "a key without a value");
      if (row.adds)
        add(top(), row.kind, items);
      else
        push_items(row.kind, std::move(items));
      return true;
    }
    return false;
  }

  bool is_function(const PickleValue& value, std::string_view module, std::string_view name) const {
    return value.kind == PickleKind::Function && values_[value.items[0]].text == module &&
           values_[value.items[1]].text == name;
  }
  bool is_sequence(const PickleValue& value) const {
    return value.kind == PickleKind::List || value.kind == PickleKind::Tuple;
  }

  /// Pushes the Dict that OrderedDict makes of a list of pairs. A pickle can name one list often, so the pairs count as
  /// values.
  void push_pairs(const PickleValue& arguments) {
    std::vector<PickleId> items;
    if (!arguments.items.empty()) {
      const PickleValue& pairs = values_[arguments.items[0]];
      check(is_sequence(pairs), "an OrderedDict that is not made of pairs");
      check((pairs_ += pairs.items.size()) <= kMaxPickleValues, "too many values");
      for (const PickleId id : pairs.items) {
        check(is_sequence(values_[id]) && values_[id].items.size() == 2, "an OrderedDict that is not made of pairs");
        items.insert(items.end(), values_[id].items.begin(), values_[id].items.end());
      }
    }
    push_items(PickleKind::Dict, std::move(items));
  }

  void push_call(PickleId function, PickleId arguments) {
    check(values_[arguments].kind == PickleKind::Tuple, "a call whose arguments are no tuple");
    if (is_function(values_[function], "collections", "OrderedDict")) return push_pairs(values_[arguments]);
    if (is_function(values_[function], "collections", "defaultdict")) return push_items(PickleKind::Dict, {});
    push_items(PickleKind::Call, {function, arguments});
  }

  void push_function(std::vector<PickleId> names) {
    for (const PickleId id : names) check(values_[id].kind == PickleKind::Text, "a function whose name is no text");
    push_items(PickleKind::Function, std::move(names));
  }

  bool read_call(char op) {
    std::vector<PickleId> taken;
    switch (op) {
      case 'c':  // GLOBAL
        push_text(PickleKind::Text, line());
        push_text(PickleKind::Text, line());
        push_function(pop_last(2));
        return true;
      case '\x93':  // STACK_GLOBAL
        push_function(pop_last(2));
        return true;
      case '\x92':  // NEWOBJ_EX, which has arguments by name besides
        pop();
        [[fallthrough]];
      case 'R':
      case '\x81':  // NEWOBJ
        taken = pop_last(2);
        push_call(taken[0], taken[1]);
        return true;
      case 'o':  // OBJ
        taken = pop_marked();
        check(!taken.empty(), "a value is missing");
        push_items(PickleKind::Tuple, {taken.begin() + 1, taken.end()});
        push_call(taken[0], pop());
        return true;
      case 'b':  // BUILD: attributes, such as an OrderedDict's _metadata
        pop();
        top();
        return true;
      case 'Q':
        push_items(PickleKind::External, {pop()});
        return true;
      default:
        return false;
    }
  }

  std::string_view& bytes_;
  const size_t size_;
  const std::string& where_;
  int64_t steps_ = 0;
  size_t pairs_ = 0;
  std::vector<PickleValue> values_;
  std::vector<PickleId> stack_;
  std::vector<size_t> marks_;  // sizes of the stack
  std::unordered_map<uint64_t, PickleId> memo_;
};

}  // namespace

const PickleValue* Pickle::find(const PickleValue& dict, std::string_view key) const {
  if (dict.kind != PickleKind::Dict) return nullptr;
  for (size_t i = dict.items.size(); i >= 2; i -= 2) {
    const PickleValue& name = item(dict, i - 2);
    if (name.kind == PickleKind::Text && name.text == key) return &item(dict, i - 1);
  }
  return nullptr;
}

std::string Pickle::function_of(const PickleValue& value) const {
  const PickleValue* function = value.kind == PickleKind::Call ? &item(value, 0) : &value;
  if (function->kind != PickleKind::Function) return "";
  return item(*function, 0).text + "." + item(*function, 1).text;
}

Pickle read_pickle(std::string_view& bytes, const std::string& where) { return Unpickler(bytes, where).read(); }

}  // namespace colossal::formats
