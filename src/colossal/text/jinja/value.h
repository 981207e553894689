// The values of templates: the Python objects that a chat template can use.
//
// Texts, lists and dictionaries are immutable, as in the sandbox of jinja2, so values share them. Namespaces can change
// and may contain themselves. The code that creates a namespace therefore passes it to Interpreter::keep().
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

/// The kinds of iterables.
enum class Sequence { List, Tuple, Range, Keys, Values, Pairs, Generator, Reversed };

/// A list or another iterable. A Generator and a Reversed can be walked only once.
struct Items {
  Sequence kind;
  std::vector<Value> values;
  int depth = 1;                           ///< nesting of lists and dictionaries
  int64_t start = 0, stop = 0, step = 1;   ///< values of a Range
  bool is_group = false;                   ///< a Tuple of groupby, whose parts are also .grouper and .list
  size_t walked = 0;                       ///< number of items that were taken from a Generator or Reversed
  std::shared_ptr<const Failure> failure;  ///< error that a Generator throws at its end; null = none
};

/// A missing value. It can be printed, walked and tested with `is defined`; other operations fail with message().
struct Undefined {
  std::string hint;         ///< the complete message, if it is not composed of `object` and `name`
  std::string object;       ///< type without such an attribute; empty = a variable is missing
  std::string name;         ///< spelled as repr() does
  bool is_element = false;  ///< true if `name` is a key that is not a text
  Cause cause = Cause::Undefined;
  std::string message() const;
};

class Dict;

/// A value of any type. Copies are cheap: they share texts, lists, dictionaries and objects.
class Value {
 public:
  Value() = default;  ///< creates None
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
  bool is_whole() const { return is_boolean() || is_integer(); }  ///< true for the types that Python regards as int
  const String* text() const { return pointer<std::shared_ptr<const String>>(); }
  Items* items() const { return pointer<std::shared_ptr<Items>>(); }
  const Dict* dict() const { return pointer<std::shared_ptr<const Dict>>(); }
  const Undefined* undefined() const { return pointer<std::shared_ptr<const Undefined>>(); }
  Object* object() const { return pointer<std::shared_ptr<Object>>(); }
  std::shared_ptr<Items> share_items() const { return std::get<std::shared_ptr<Items>>(storage_); }
  std::shared_ptr<Object> share_object() const { return std::get<std::shared_ptr<Object>>(storage_); }
  bool is_list() const { return items() && items()->kind == Sequence::List; }
  bool is_tuple() const { return items() && items()->kind == Sequence::Tuple; }
  /// Returns true if the value can be walked only once.
  bool is_generator() const {
    return items() && (items()->kind == Sequence::Generator || items()->kind == Sequence::Reversed);
  }
  bool truth_of_boolean() const { return std::get<bool>(storage_); }
  int64_t whole() const { return is_boolean() ? std::get<bool>(storage_) : std::get<int64_t>(storage_); }
  /// Returns any number, or a boolean, as a double.
  double number() const { return is_real() ? std::get<double>(storage_) : static_cast<double>(whole()); }
  /// Returns true if both are one object, as Python's `is`; texts and numbers are one if they are equal.
  bool is_same(const Value& other) const;
  /// Returns an address that orders values that have no order of their own.
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

/// Keys and values in order of insertion. Keys are None, numbers, texts, tuples of keys, or objects.
class Dict {
 public:
  struct Less {
    bool operator()(const Value& a, const Value& b) const;
  };
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  /// Sets the value of a key. Errors: the key is a list or dictionary ("unhashable type").
  void set(const Value& key, Value value);
  void clear();
  size_t size() const { return entries_.size(); }
  const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }
  int depth() const { return depth_; }

 private:
  std::vector<std::pair<Value, Value>> entries_;
  std::map<Value, size_t, Less> places_;  ///< indices of the keys; empty for small dictionaries
  int depth_ = 1;
};

/// The arguments of a call.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Interpreter;

/// Values that are not data: namespaces, loops, macros, functions, methods.
class Object : public std::enable_shared_from_this<Object> {
 public:
  virtual ~Object() = default;
  virtual std::string type_name() const = 0;
  /// Returns the name of the type in messages of jinja2.
  virtual std::string full_type_name() const { return type_name(); }
  virtual std::string repr(Budget&) const { return "<" + full_type_name() + " object>"; }
  /// Returns the attribute `name`; no value if there is none.
  virtual std::optional<Value> attribute(Interpreter&, std::string_view) { return std::nullopt; }
  virtual bool is_callable() const { return false; }
  virtual Value call(Interpreter&, Arguments&);
  virtual int depth() const { return 0; }  ///< nesting of the lists and dictionaries that it holds
  /// Releases its references. Interpreter calls it at the end of a rendering for objects that may refer to themselves.
  virtual void clear() {}
};

constexpr int kDeepestValue = 200;  ///< maximum nesting of lists and dictionaries

int depth_of(const Value& value);
/// Checks the nesting of a value. Errors: deeper than kDeepestValue, because the destruction of a value recurses.
void require_shallow(int depth);

/// Create texts, lists, tuples and dictionaries; their memory is taken from the budget.
Value make_text(Budget& budget, std::string bytes, bool markup = false);
Value make_items(Budget& budget, std::vector<Value> values, Sequence kind = Sequence::List);
Value make_dict(Budget& budget, Dict dict);
Value make_undefined(std::string hint, Cause cause = Cause::Undefined);
/// Takes the steps for comparing a dictionary key with other keys.
void step_key(Budget& budget, const Value& key);

/// Returns Python's name of the value's type: "str", "NoneType".
std::string type_name(const Value& value);
/// Returns the type as messages of jinja2 spell it: "str object", "None".
std::string described_type(const Value& value);
bool is_true(const Value& value);
/// Checks that the value is defined. Errors: the message of the missing value.
void require_defined(const Value& value);
/// Returns a == b. Errors: only limits.
bool is_equal(Budget& budget, const Value& a, const Value& b);
/// Returns Python's a < b for numbers, texts, lists and tuples.
/// Errors: types without an order; the message shows `sign`.
bool is_less(Budget& budget, const Value& a, const Value& b, const char* sign = "<");
/// Checks that the value can be a dictionary key. Errors: "unhashable type: 'list'".
void require_hashable(const Value& value);

/// Returns the items of `value`; a generator is empty afterwards. Errors: a value that is not iterable.
std::vector<Value> walk(Budget& budget, const Value& value);
bool is_iterable(const Value& value);
/// Returns len(value). Errors: "object of type 'NoneType' has no len()".
int64_t length_of(const Value& value);
bool has_length(const Value& value);

}  // namespace colossal::text::jinja
