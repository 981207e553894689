// Reads what Python's pickle wrote, as a table of values. Nothing is run: a call in a pickle becomes a value that names
// the function and has its arguments.
//
//   std::string_view bytes = file->bytes();
//   const Pickle pickle = read_pickle(bytes, "model.pt");
//   for (size_t i = 0; i + 1 < pickle.root().items.size(); i += 2) use(pickle.item(pickle.root(), i).text);
//
// See: https://docs.python.org/3/library/pickletools.html.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace colossal::formats {

/// The number of a value in its Pickle.
using PickleId = uint32_t;

/// A value. Containers hold the numbers of others; a value may be in several, and even in itself.
struct PickleValue {
  enum class Kind {
    None,
    Bool,        ///< `integer`
    Integer,     ///< `integer`
    BigInteger,  ///< of more than 64 bits: `text` has its bytes, the lowest first
    Real,        ///< `real`
    Text,        ///< `text`
    Bytes,       ///< `text`
    List,        ///< `items`
    Tuple,       ///< `items`
    Set,         ///< `items`
    Dict,        ///< keys and values in turn in `items`; also an OrderedDict or a defaultdict
    Function,    ///< a function or class: `items` are the texts of its module and its name
    Call,        ///< `items` are what is called and a Tuple, its arguments; what is added to the result is dropped
    External     ///< an object that the file has elsewhere: items[0] says which
  };
  Kind kind = Kind::None;
  int64_t integer = 0;
  double real = 0;
  std::string text{};
  std::vector<PickleId> items{};
};

/// The values of a pickle.
class Pickle {
 public:
  Pickle(std::vector<PickleValue> values, PickleId root) : values_(std::move(values)), root_(root) {}
  const PickleValue& operator[](PickleId id) const { return values_[id]; }
  const PickleValue& root() const { return values_[root_]; }
  const std::vector<PickleValue>& values() const { return values_; }
  const PickleValue& item(const PickleValue& of, size_t index) const { return values_[of.items[index]]; }
  /// Returns the value of the last item of a Dict with this text as key; null = `dict` is no Dict or has none.
  const PickleValue* find(const PickleValue& dict, std::string_view key) const;
  /// Returns "module.name" of a Function or of what a Call calls; "" = the value is neither, or the result of a call is
  /// called.
  std::string function_of(const PickleValue& value) const;

 private:
  std::vector<PickleValue> values_;  // every id in it is an index of it
  PickleId root_;
};

/// Takes a pickle of protocol 1 to 5 from the front of `bytes`.
/// Errors ("pickle", `where`, the byte and rule): the bytes end within the pickle; an opcode that is unknown, or of
///         protocol 0 or a registry of extensions; a value, mark or memo that is not there; more than ten million
///         values.
/// Cost: about 90 bytes of memory per value; no recursion.
Pickle read_pickle(std::string_view& bytes, const std::string& where);

}  // namespace colossal::formats
