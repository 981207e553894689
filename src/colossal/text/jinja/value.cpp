#include "colossal/text/jinja/value.h"

#include <algorithm>
#include <cmath>

#include "colossal/text/jinja/characters.h"

namespace colossal::text::jinja {
namespace {

constexpr size_t kSearchedInARow = 8;  // number of keys from which a map replaces linear search

const char* kind_name(Sequence kind) {
  switch (kind) {
    case Sequence::List:
      return "list";
    case Sequence::Tuple:
      return "tuple";
    case Sequence::Range:
      return "range";
    case Sequence::Keys:
      return "dict_keys";
    case Sequence::Values:
      return "dict_values";
    case Sequence::Pairs:
      return "dict_items";
    case Sequence::Generator:
      return "generator";
    case Sequence::Reversed:
      return "list_reverseiterator";
  }
  return "list";
}

/// Returns the class of a key. Keys of one class have an order; keys of different classes are ordered by class.
int class_of_key(const Value& key) {
  if (key.is_none()) return 0;
  if (key.is_number()) return 1;
  if (key.text()) return 2;
  if (key.items()) return 3;
  return 4;
}

/// Returns -1, 0 or 1, without rounding large integers; no value if one number is NaN.
std::optional<int> order_of_numbers(const Value& a, const Value& b) {
  if (a.is_whole() && b.is_whole()) return a.whole() < b.whole() ? -1 : a.whole() > b.whole();
  const double x = a.number(), y = b.number();
  if (std::isnan(x) || std::isnan(y)) return std::nullopt;
  if (x != y || (a.is_real() && b.is_real())) return x < y ? -1 : x > y;
  const double real = a.is_real() ? x : y;  // equal after rounding, so they are compared as integers if possible
  if (real >= 9223372036854775808.0) return a.is_real() ? 1 : -1;
  const auto whole = static_cast<int64_t>(real);
  const int64_t other = a.is_real() ? b.whole() : a.whole();
  const int order = whole < other ? -1 : whole > other;
  return a.is_real() ? order : -order;
}

bool has_equal_items(Budget& budget, const Items& a, const Items& b) {
  if (a.kind != b.kind || a.values.size() != b.values.size()) return false;
  if (a.kind == Sequence::Generator || a.kind == Sequence::Reversed || a.kind == Sequence::Values) return false;
  for (size_t i = 0; i < a.values.size(); ++i)
    if (!is_equal(budget, a.values[i], b.values[i])) return false;
  return true;
}

bool has_equal_entries(Budget& budget, const Dict& a, const Dict& b) {
  if (a.size() != b.size()) return false;
  for (const auto& [key, value] : a.entries()) {
    const Value* other = b.find(key);
    if (!other || !is_equal(budget, value, *other)) return false;
  }
  return true;
}

}  // namespace

std::string Undefined::message() const {
  if (!hint.empty()) return hint;
  if (object.empty()) return name + " is undefined";
  if (is_element) return object + " has no element " + name;
  return "'" + object + "' has no attribute " + name;
}

bool Value::is_same(const Value& other) const {
  if (storage_.index() != other.storage_.index()) return false;
  if (is_none()) return true;
  if (is_number()) return number() == other.number();
  if (text()) return text()->bytes == other.text()->bytes;
  return address() == other.address();
}

const void* Value::address() const {
  if (text()) return text();
  if (items()) return items();
  if (dict()) return dict();
  if (undefined()) return undefined();
  return object();
}

bool Dict::Less::operator()(const Value& a, const Value& b) const {
  const int first = class_of_key(a), second = class_of_key(b);
  if (first != second) return first < second;
  if (first == 0) return false;
  if (first == 1) {
    const auto order = order_of_numbers(a, b);
    return order ? *order < 0 : !std::isnan(a.number()) && std::isnan(b.number());
  }
  if (first == 2) return a.text()->bytes < b.text()->bytes;
  if (first == 3)
    return std::lexicographical_compare(a.items()->values.begin(), a.items()->values.end(), b.items()->values.begin(),
                                        b.items()->values.end(), *this);
  return a.address() < b.address();
}

const Value* Dict::find(const Value& key) const {
  if (!places_.empty()) {
    const auto found = places_.find(key);
    return found == places_.end() ? nullptr : &entries_[found->second].second;
  }
  const Less less;
  for (const auto& [other, value] : entries_)
    if (!less(key, other) && !less(other, key)) return &value;
  return nullptr;
}

const Value* Dict::find(std::string_view key) const {
  if (!places_.empty())
    return find(Value::of(std::make_shared<const String>(String{std::string(key), count_characters(key)})));
  for (const auto& [other, value] : entries_)
    if (other.text() && other.text()->bytes == key) return &value;
  return nullptr;
}

void Dict::set(const Value& key, Value value) {
  require_hashable(key);
  depth_ = std::max({depth_, depth_of(key) + 1, depth_of(value) + 1});
  if (const Value* found = find(key)) {
    *const_cast<Value*>(found) = std::move(value);
    return;
  }
  entries_.emplace_back(key, std::move(value));
  if (entries_.size() == kSearchedInARow)
    for (size_t i = 0; i < entries_.size(); ++i) places_.emplace(entries_[i].first, i);
  else if (entries_.size() > kSearchedInARow)
    places_.emplace(key, entries_.size() - 1);
}

void Dict::clear() {
  entries_.clear();
  places_.clear();
}

Value Object::call(Interpreter&, Arguments&) { fail(Cause::Type, "'", type_name(), "' object is not callable"); }

int depth_of(const Value& value) {
  if (value.items()) return value.items()->depth;
  if (value.dict()) return value.dict()->depth();
  return value.object() ? value.object()->depth() : 0;
}

void require_shallow(int depth) {
  if (depth > kDeepestValue)
    fail(Cause::Limit, "lists, dictionaries and methods must be nested at most ", kDeepestValue, " deep");
}

void step_key(Budget& budget, const Value& key) {
  budget.step();
  if (key.text()) budget.step(static_cast<int64_t>(key.text()->bytes.size() / 256));
  if (key.is_tuple())
    for (const Value& part : key.items()->values) step_key(budget, part);
}

Value make_text(Budget& budget, std::string bytes, bool markup) {
  constexpr size_t kAround = 32;  // overhead of the allocator and of the reference count
  budget.take_bytes(static_cast<int64_t>(bytes.size() + sizeof(String) + kAround));
  const int64_t characters = count_characters(bytes);
  return Value::of(std::make_shared<const String>(String{std::move(bytes), characters, markup}));
}

Value make_items(Budget& budget, std::vector<Value> values, Sequence kind) {
  budget.take_bytes(static_cast<int64_t>(values.size() * sizeof(Value) + sizeof(Items)));
  auto items = std::make_shared<Items>(Items{});
  items->kind = kind;
  items->values = std::move(values);
  for (const Value& value : items->values) items->depth = std::max(items->depth, depth_of(value) + 1);
  require_shallow(items->depth);
  return Value::of(std::move(items));
}

Value make_dict(Budget& budget, Dict dict) {
  budget.take_bytes(static_cast<int64_t>(dict.size() * 8 * sizeof(Value) + sizeof(Dict)));
  require_shallow(dict.depth());
  return Value::of(std::make_shared<const Dict>(std::move(dict)));
}

Value make_undefined(std::string hint, Cause cause) {
  Undefined undefined;
  undefined.hint = std::move(hint);
  undefined.cause = cause;
  return Value::of(std::make_shared<const Undefined>(std::move(undefined)));
}

std::string type_name(const Value& value) {
  if (value.is_none()) return "NoneType";
  if (value.is_boolean()) return "bool";
  if (value.is_integer()) return "int";
  if (value.is_real()) return "float";
  if (value.text()) return value.text()->markup ? "Markup" : "str";
  if (value.items()) return kind_name(value.items()->kind);
  if (value.dict()) return "dict";
  if (value.undefined()) return "Undefined";
  return value.object()->type_name();
}

std::string described_type(const Value& value) {
  if (value.is_none()) return "None";
  if (value.undefined()) return "jinja2.runtime.Undefined object";
  if (value.object()) return value.object()->full_type_name() + " object";
  if (value.text() && value.text()->markup) return "markupsafe.Markup object";
  return type_name(value) + " object";
}

bool is_true(const Value& value) {
  if (value.is_none() || value.undefined()) return false;
  if (value.is_number()) return value.number() != 0;
  if (value.text()) return !value.text()->bytes.empty();
  if (value.items()) return value.is_generator() || !value.items()->values.empty();
  return value.object() || value.dict()->size() != 0;
}

void require_defined(const Value& value) {
  if (value.undefined()) throw Failure(value.undefined()->cause, value.undefined()->message());
}

bool is_equal(Budget& budget, const Value& a, const Value& b) {
  budget.step();
  if (a.is_number() && b.is_number()) return order_of_numbers(a, b) == 0;
  if (a.text() && b.text()) {
    if (a.text()->bytes.size() != b.text()->bytes.size()) return false;
    budget.step(static_cast<int64_t>(a.text()->bytes.size() / 256));
    return a.text()->bytes == b.text()->bytes;
  }
  if (a.items() && b.items()) return a.items() == b.items() || has_equal_items(budget, *a.items(), *b.items());
  if (a.dict() && b.dict()) return a.dict() == b.dict() || has_equal_entries(budget, *a.dict(), *b.dict());
  if (a.undefined() && b.undefined()) return true;
  if (a.is_none() && b.is_none()) return true;
  return a.object() && a.object() == b.object();
}

bool is_less(Budget& budget, const Value& a, const Value& b, const char* sign) {
  budget.step();
  require_defined(a);
  require_defined(b);
  if (a.is_number() && b.is_number()) {
    const auto order = order_of_numbers(a, b);
    return order && *order < 0;
  }
  if (a.text() && b.text()) {
    budget.step(static_cast<int64_t>(std::min(a.text()->bytes.size(), b.text()->bytes.size()) / 256));
    return a.text()->bytes < b.text()->bytes;
  }
  if ((a.is_list() && b.is_list()) || (a.is_tuple() && b.is_tuple())) {
    const auto &x = a.items()->values, &y = b.items()->values;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i)
      if (!is_equal(budget, x[i], y[i])) return is_less(budget, x[i], y[i], sign);
    return x.size() < y.size();
  }
  fail(Cause::Type, "'", sign, "' not supported between instances of '", type_name(a), "' and '", type_name(b), "'");
}

void require_hashable(const Value& value) {
  const bool is_view = value.items() && value.items()->kind <= Sequence::Pairs && !value.is_tuple();
  if (value.dict() || (is_view && value.items()->kind != Sequence::Range))
    fail(Cause::Type, "unhashable type: '", type_name(value), "'");
  if (!value.is_tuple()) return;
  for (const Value& item : value.items()->values) {
    if (item.is_tuple()) fail(Cause::Unsupported, "keys that are tuples must not hold tuples");
    require_hashable(item);
  }
}

bool is_iterable(const Value& value) {
  if (value.object()) return value.object()->type_name() == "LoopContext";
  return value.text() || value.items() || value.dict() || value.undefined();
}

std::vector<Value> walk(Budget& budget, const Value& value) {
  std::vector<Value> values;
  if (value.undefined()) return values;
  if (const Items* items = value.items()) {
    budget.step(static_cast<int64_t>(items->values.size() / 4));
    budget.take_bytes(static_cast<int64_t>(items->values.size() * sizeof(Value)));
    if (!value.is_generator()) return items->values;
    Items& generator = *value.items();
    values.assign(generator.values.begin() + static_cast<std::ptrdiff_t>(generator.walked), generator.values.end());
    generator.walked = generator.values.size();
    if (const auto failure = std::move(generator.failure)) throw *failure;
  } else if (const Dict* dict = value.dict()) {
    budget.take_bytes(static_cast<int64_t>(dict->size() * sizeof(Value)));
    for (const auto& entry : dict->entries()) values.push_back(entry.first);
  } else if (const String* text = value.text()) {
    budget.take_bytes(text->characters, sizeof(Value));
    for (size_t i = 0; i < text->bytes.size();) {
      const size_t length = character_length(text->bytes, i);
      values.push_back(make_text(budget, text->bytes.substr(i, length)));
      i += length;
    }
  } else {
    fail(Cause::Type, "'", type_name(value), "' object is not iterable");
  }
  return values;
}

bool has_length(const Value& value) {
  return value.text() || value.dict() || value.undefined() || (value.items() && !value.is_generator());
}

int64_t length_of(const Value& value) {
  if (!has_length(value)) fail(Cause::Type, "object of type '", type_name(value), "' has no len()");
  if (value.text()) return value.text()->characters;
  if (value.dict()) return static_cast<int64_t>(value.dict()->size());
  return value.items() ? static_cast<int64_t>(value.items()->values.size()) : 0;
}

}  // namespace colossal::text::jinja
