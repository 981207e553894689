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
// The value of a member in a new struct is its documented default. The unit is "" if there is none. See base/config.h
// for reading and printing TOML, and base/json_fields.h for reading JSON.
#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace colossal {

class ConfigDocument;

inline constexpr int64_t kMaxInteger = std::numeric_limits<int64_t>::max();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

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
  bool can_be_off = false;                ///< true for an int64_t that may also be -1 = off, besides min .. max
  bool is_json = false;                   ///< true for a string that holds one JSON value; an empty string = none
  const char* previous = "";              ///< its name in the previous release, which readers accept; empty = none
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

  void flag(const char* name, bool& value, const char* help);
  void integer(const char* name, int64_t& value, const char* unit, const char* help, int64_t min = 0,
               int64_t max = kMaxInteger);
  void number(const char* name, double& value, const char* unit, const char* help, double low = -kInfinity,
              double high = kInfinity);
  void text(const char* name, std::string& value, const char* help);
  void choice(const char* name, std::string& value, std::vector<std::string> choices, const char* help);
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
    config.fields(*this);
    leave();
  }

 protected:
  /// Visits the field, with the previous name that previously() gave.
  void show(Field field);
  virtual void visit(const Field& field) = 0;
  virtual void visit_rest(ConfigDocument& keys) = 0;
  virtual void enter(const char* section, const char* help, const char* stands_for) = 0;
  virtual void leave() = 0;

 private:
  const char* previous_ = "";
};

}  // namespace colossal
