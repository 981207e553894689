// Reflection of config structs: a struct names each member once, in `void fields(Fields& f)`, and everything else is
// derived from that: the TOML reader, the --section.key=value flags, the printer, `colossal help config`, the error
// messages.
//
//   struct TensorConfig {
//     int64_t size = 1;
//     std::string mode = "1d";
//     void fields(Fields& f) {
//       f.integer("size", size, "ranks", "ranks that share each matrix", 1, 65536);
//       f.choice("mode", mode, {"1d", "2d"}, "how a matrix is cut");
//     }
//   };
//   struct ParallelConfig {
//     TensorConfig tensor;
//     void fields(Fields& f) { f.section("tensor", tensor, "tensor parallelism", "size"); }  // `tensor = 2`: its size
//   };
//
// Files and messages of the program, which people do not write, need neither units nor help:
//
//   struct Links {
//     double seconds = 0;
//     std::vector<Link> links;  // Link has fields(), too
//     void fields(Fields& f) { f.member("seconds", seconds), f.member("links", links); }
//   };
//
// The value of a member in a new struct is its documented default. The unit is "" if there is none. See base/config.h
// for reading and printing TOML, and base/json_fields.h for reading and writing JSON.
#pragma once
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

namespace colossal {

class ConfigDocument;

inline constexpr int64_t kMaxInteger = std::numeric_limits<int64_t>::max();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Whether stored JSON has a member; see Fields::optional().
enum class Presence {
  Always,
  Optional,  ///< readers accept that it is missing
  LeftOut,   ///< like Optional, and a writer leaves it out
};

/// One member, as a visitor sees it. `min` and `max` bound integers and byte sizes; `low` and `high` bound doubles.
/// The bounds hold for each element of a list.
struct Field {
  using Value = std::variant<bool*, int64_t*, double*, std::string*, std::vector<int64_t>*, std::vector<double>*,
                             std::vector<std::string>*, std::map<int64_t, double>*>;
  const char* name = "";
  Value value;
  const char* unit = "";
  const char* help = "";
  int64_t min = std::numeric_limits<int64_t>::min();
  int64_t max = kMaxInteger;
  double low = -kInfinity;
  double high = kInfinity;
  bool is_bytes = false;                  ///< true for an int64_t that is written as "70GiB"
  std::vector<std::string> choices = {};  ///< the values that a string may have; empty = any
  bool takes_numbers = false;             ///< true for a string that may also be a number, besides `choices`
  bool can_be_off = false;                ///< true for an int64_t that may also be -1 = off, besides min .. max
  bool is_json = false;                   ///< true for a string that holds one JSON value; an empty string = none
  bool is_count = false;                  ///< true for a double that JSON holds as an integer while it is whole
  const char* previous = "";              ///< its name in the previous release, which readers accept; empty = none
  Presence presence = Presence::Always;   ///< in stored JSON
};

/// A visitor over the members of a config struct. The struct calls one public function for each member.
class Fields {
 public:
  virtual ~Fields() = default;

  /// Gives the next field a previous name, which readers accept for one release and report as renamed:
  ///
  ///   f.previously("zero_sharers").integer("zero_group", zero_group, "replicas", "ZeRO group size");
  ///
  /// Help, printed configs and suggestions show the new name only.
  Fields& previously(const char* name);

  /// Says that stored JSON may lack the next member. A reader then keeps its value. If `is_left_out` is true, a writer
  /// of JSON leaves the member out:
  ///
  ///   f.optional(groups == 1).integer("groups", groups, "", "groups of a convolution");
  ///
  /// Other visitors show the member.
  Fields& optional(bool is_left_out = false);

  void flag(const char* name, bool& value, const char* help);
  void integer(const char* name, int64_t& value, const char* unit, const char* help, int64_t min = 0,
               int64_t max = kMaxInteger);
  void number(const char* name, double& value, const char* unit, const char* help, double low = -kInfinity,
              double high = kInfinity);
  void text(const char* name, std::string& value, const char* help);
  /// Visits a text that must be one of `choices`. If "true" and "false" are among them, TOML may have these without
  /// quotes: a flag with a third value, such as "auto".
  void choice(const char* name, std::string& value, std::vector<std::string> choices, const char* help);
  /// Visits a text that must be one of `words` or a number of at least `low`, which TOML may have without quotes.
  void number_or_word(const char* name, std::string& value, std::vector<std::string> words, const char* help,
                      double low = -kInfinity);
  /// Visits a size in bytes, written "70GiB", "1.5MB" or as a plain integer.
  void bytes(const char* name, int64_t& value, const char* help, int64_t min = 0, int64_t max = kMaxInteger);
  /// Visits a list. Every element must be in the range.
  void integers(const char* name, std::vector<int64_t>& value, const char* unit, const char* help, int64_t min = 0,
                int64_t max = kMaxInteger);
  void numbers(const char* name, std::vector<double>& value, const char* unit, const char* help,
               double low = -kInfinity, double high = kInfinity);
  void texts(const char* name, std::vector<std::string>& value, const char* help);
  /// Visits an integer that may also be -1 = off. Its default is off.
  void integer_or_off(const char* name, int64_t& value, const char* unit, const char* help, int64_t min = 0);
  /// Visits numbers by non-negative id, written as a table: `{50256 = -100}` in TOML, `{"50256": -100}` in JSON.
  /// A reader adds to the numbers that the map already has.
  void numbers_by_id(const char* name, std::map<int64_t, double>& value, const char* help, double low = -kInfinity,
                     double high = kInfinity);
  /// Visits text that holds one JSON value. Empty text means none. A JSON document has the value itself, or null.
  void json(const char* name, std::string& value, const char* help);
  /// Collects, unread, all keys of this section that no earlier call named; at the root all tables that none named.
  /// The caller later reads `keys` into the struct that another key chooses; reading refuses keys that the struct does
  /// not have.
  void rest(ConfigDocument& keys);

  /// Visits a nested struct, which is a table of the file. If `stands_for` is not empty, a plain value in place of the
  /// table sets the member of that name.
  template <class Config>
  void section(const char* name, Config& config, const char* help, const char* stands_for = "") {
    enter(name, help, stands_for);
    presence_ = Presence::Always;
    config.fields(*this);
    leave();
  }

  /// Visits a list of structs that have fields(). Only stored JSON holds such lists: other visitors throw
  /// Error("config", ...) with the name.
  template <class Struct>
  void list(const char* name, std::vector<Struct>& items) {
    const size_t size = enter_list(name, items.size());
    presence_ = Presence::Always;
    for (size_t i = 0; i < size; ++i) {
      enter_item(i);
      if (i == items.size()) items.emplace_back();  // one by one, as the reader has checked the item
      items[i].fields(*this);
      leave();
    }
    items.resize(size);
    leave();
  }

  /// Visits a double that JSON holds as an integer while it is whole and a double is exact, up to 2^53.
  void count(const char* name, double& value);

  /// Visits a member of a file or message of the program by its type: a value of the kinds above, another integer in
  /// the range of its type (below 2^63), a struct with fields(), a list of such structs, or an std::optional of one of
  /// these. Only JSON has an std::optional; null stands for an empty one.
  template <class Value>
  void member(const char* name, Value& value) {
    if constexpr (std::is_constructible_v<Field::Value, Value*>) {
      show({.name = name, .value = &value});
    } else if constexpr (requires { value.has_value(); }) {
      const bool has_value = has(name, value.has_value());
      if (!has_value) presence_ = Presence::Always, value.reset();
      if (has_value) member(name, value ? *value : value.emplace());
    } else if constexpr (std::is_integral_v<Value>) {
      using Range = std::numeric_limits<Value>;
      constexpr bool is_wide = sizeof(Value) == sizeof(int64_t);
      auto whole = static_cast<int64_t>(value);
      show({.name = name,
            .value = &whole,
            .min = Range::min(),
            .max = is_wide ? kMaxInteger : static_cast<int64_t>(Range::max())});
      value = static_cast<Value>(whole);
    } else if constexpr (requires { value.fields(*this); }) {
      section(name, value, "");
    } else {
      list(name, value);
    }
  }

 protected:
  /// Visits the field, with the previous name that previously() gave and the presence that optional() gave.
  void show(Field field);
  /// Returns the presence of the section, list or std::optional that is entered.
  Presence presence() const { return presence_; }
  virtual void visit(const Field& field) = 0;
  virtual void visit_rest(ConfigDocument& keys) = 0;
  virtual void enter(const char* section, const char* help, const char* stands_for) = 0;
  virtual void leave() = 0;
  /// Enters a list of `size` structs, and returns their number: a reader returns that of its document. leave() ends it.
  virtual size_t enter_list(const char* name, size_t size);
  /// Returns whether an std::optional is to have a value: a reader says what its document has.
  virtual bool has(const char* name, bool has_value);
  /// Enters a struct of the list. leave() ends it.
  virtual void enter_item(size_t /*index*/) {}

 private:
  const char* previous_ = "";
  Presence presence_ = Presence::Always;
};

}  // namespace colossal
