// The values of templates: what of Python's objects a chat template can meet.
//
// Texts, lists and dictionaries never change once they are made, as the sandbox of jinja2 has it, so that values share
// them. Namespaces do change, and can hold themselves: who makes one keeps it until the end of the rendering.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "colossal/text/jinja/budget.h"

namespace colossal::text::jinja {

class Value;
class Object;

/// A text in UTF-8.
struct String {
  std::string bytes;
  int64_t characters;   ///< code points
  bool markup = false;  ///< markupsafe's Markup: `+`, `%` and join escape the other texts for HTML
  bool is_ascii() const { return characters == static_cast<int64_t>(bytes.size()); }
};

/// What items are walked one after the other.
enum class Sequence { List, Tuple, Range, Keys, Values, Pairs, Generator, Reversed };

/// A list and what else is walked like one. A Generator and a Reversed can be walked once.
struct Items {
  Sequence kind;
  std::vector<Value> values;
  int depth = 1;                           ///< lists and dictionaries within each other
  int64_t start = 0, stop = 0, step = 1;   ///< of a Range
  bool is_group = false;                   ///< a Tuple of groupby: its parts are also .grouper and .list
  size_t walked = 0;                       ///< of a Generator or Reversed
  std::shared_ptr<const Failure> failure;  ///< a Generator ends with it
};

/// A missing value. It may be printed, walked and asked whether it is defined; everything else fails with message().
struct Undefined {
  std::string hint;         ///< the whole message, where it is not made of the two below
  std::string object;       ///< the type that has no such attribute; empty: a variable is missing
  std::string name;         ///< as repr() shows it
  bool is_element = false;  ///< the name is no text
  Cause cause = Cause::Undefined;
  std::string message() const;
};

class Dict;

class Value {
 public:
  Value() = default;  ///< None
  static Value none() { return {}; }
  static Value boolean(bool b) { return Value(Storage(b)); }
  static Value integer(int64_t i) { return Value(Storage(i)); }
  static Value real(double d) { return Value(Storage(d)); }
  static Value of(std::shared_ptr<const String> text) { return Value(Storage(std::move(text))); }
  static Value of(std::shared_ptr<Items> items) { return Value(Storage(std::move(items))); }
  static Value of(std::shared_ptr<const Dict> dict) { return Value(Storage(std::move(dict))); }
  static Value of(std::shared_ptr<const Undefined> missing) { return Value(Storage(std::move(missing))); }
  static Value of(std::shared_ptr<Object> object) { return Value(Storage(std::move(object))); }

  bool is_none() const { return std::holds_alternative<std::monostate>(storage_); }
  bool is_boolean() const { return std::holds_alternative<bool>(storage_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(storage_); }
  bool is_real() const { return std::holds_alternative<double>(storage_); }
  bool is_number() const { return is_boolean() || is_integer() || is_real(); }
  bool is_whole() const { return is_boolean() || is_integer(); }  ///< an int to Python
  const String* text() const { return pointer<std::shared_ptr<const String>>(); }
  Items* items() const { return pointer<std::shared_ptr<Items>>(); }
  const Dict* dict() const { return pointer<std::shared_ptr<const Dict>>(); }
  const Undefined* undefined() const { return pointer<std::shared_ptr<const Undefined>>(); }
  Object* object() const { return pointer<std::shared_ptr<Object>>(); }
  std::shared_ptr<Items> share_items() const { return std::get<std::shared_ptr<Items>>(storage_); }
  std::shared_ptr<Object> share_object() const { return std::get<std::shared_ptr<Object>>(storage_); }
  bool is_list() const { return items() && items()->kind == Sequence::List; }
  bool is_tuple() const { return items() && items()->kind == Sequence::Tuple; }
  /// Can be walked once.
  bool is_generator() const {
    return items() && (items()->kind == Sequence::Generator || items()->kind == Sequence::Reversed);
  }
  bool truth_of_boolean() const { return std::get<bool>(storage_); }
  int64_t whole() const { return is_boolean() ? std::get<bool>(storage_) : std::get<int64_t>(storage_); }
  /// Returns any number, or a boolean, as a double.
  double number() const { return is_real() ? std::get<double>(storage_) : static_cast<double>(whole()); }
  /// Returns true if both are one object, as Python's `is`; texts and numbers are one if they are equal.
  bool is_same(const Value& other) const;
  /// A fixed order of addresses, for what has no order of its own.
  const void* address() const;

 private:
  using Storage =
      std::variant<std::monostate, bool, int64_t, double, std::shared_ptr<const String>, std::shared_ptr<Items>,
                   std::shared_ptr<const Dict>, std::shared_ptr<const Undefined>, std::shared_ptr<Object>>;
  explicit Value(Storage storage) : storage_(std::move(storage)) {}
  template <class Pointer>
  typename Pointer::element_type* pointer() const {
    const Pointer* found = std::get_if<Pointer>(&storage_);
    return found ? found->get() : nullptr;
  }
  Storage storage_;
};

/// Keys and values in the order in which the keys came. Keys are None, numbers, texts, tuples of keys, or objects.
class Dict {
 public:
  struct Less {
    bool operator()(const Value& a, const Value& b) const;
  };
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  /// Errors: a key that is a list or dictionary ("unhashable type").
  void set(const Value& key, Value value);
  void clear();
  size_t size() const { return entries_.size(); }
  const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }
  int depth() const { return depth_; }

 private:
  std::vector<std::pair<Value, Value>> entries_;
  std::map<Value, size_t, Less> places_;  ///< of the keys, once they are many
  int depth_ = 1;
};

/// What a call is given.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Interpreter;

/// What is no data: namespaces, loops, macros, functions, methods.
class Object : public std::enable_shared_from_this<Object> {
 public:
  virtual ~Object() = default;
  virtual std::string type_name() const = 0;
  /// As jinja2 names the type in messages.
  virtual std::string full_type_name() const { return type_name(); }
  virtual std::string repr(Budget&) const { return "<" + full_type_name() + " object>"; }
  /// What `.name` is; nothing where there is no such attribute.
  virtual std::optional<Value> attribute(Interpreter&, std::string_view) { return std::nullopt; }
  virtual bool is_callable() const { return false; }
  virtual Value call(Interpreter&, Arguments&);
  virtual int depth() const { return 0; }  ///< lists and dictionaries within each other that it holds
  /// Drops what it refers to. Called at the end of a rendering for what may refer to itself.
  virtual void clear() {}
};

constexpr int kDeepestValue = 200;  ///< lists and dictionaries within each other

int depth_of(const Value& value);
/// Errors: deeper than kDeepestValue, since a value that goes is taken apart by functions that call themselves.
void require_shallow(int depth);

/// Texts, lists and tuples, taken from the budget.
Value make_text(Budget& budget, std::string bytes, bool markup = false);
Value make_items(Budget& budget, std::vector<Value> values, Sequence kind = Sequence::List);
Value make_dict(Budget& budget, Dict dict);
Value make_undefined(std::string hint, Cause cause = Cause::Undefined);
/// What comparing a key of a dictionary with others takes.
void step_key(Budget& budget, const Value& key);

/// Python's name of a type: "str", "NoneType".
std::string type_name(const Value& value);
/// As messages of jinja2 have it: "str object", "None".
std::string described_type(const Value& value);
bool is_true(const Value& value);
/// Fails where the value is undefined: with the message of what is missing.
void require_defined(const Value& value);
/// ==. Errors: none but the limits.
bool is_equal(Budget& budget, const Value& a, const Value& b);
/// Python's `<`: numbers, texts, lists, tuples. Errors: types that have no order; `sign` is what the message shows.
bool is_less(Budget& budget, const Value& a, const Value& b, const char* sign = "<");
/// Can be the key of a dictionary. Errors: "unhashable type: 'list'".
void require_hashable(const Value& value);

/// The values that walking `value` gives; a generator is empty afterwards. Errors: what cannot be walked.
std::vector<Value> walk(Budget& budget, const Value& value);
bool is_iterable(const Value& value);
/// len(). Errors: "object of type 'NoneType' has no len()".
int64_t length_of(const Value& value);
bool has_length(const Value& value);

}  // namespace colossal::text::jinja
