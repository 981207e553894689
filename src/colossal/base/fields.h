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
// Members hold their default when a struct is made; that value is the documented default. Units are "" where there is
// none. Reading and printing: base/config.h. Reading from JSON: base/json_fields.h.
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

/// One member as a visitor sees it. `least`/`most` bound integers and byte sizes, `low`/`high` doubles (each element of
/// a list).
struct Field {
  using Value = std::variant<bool*, int64_t*, double*, std::string*, std::vector<int64_t>*, std::vector<double>*,
                             std::vector<std::string>*, std::map<int64_t, double>*>;
  const char* name = "";
  Value value;
  const char* unit = "";
  const char* help = "";
  int64_t least = std::numeric_limits<int64_t>::min();
  int64_t most = kMaxInteger;
  double low = -kInfinity;
  double high = kInfinity;
  bool is_bytes = false;                  // an int64_t written as "70GiB"
  std::vector<std::string> choices = {};  // the only values a string may take; empty: any
  bool can_be_off = false;                // an int64_t that is -1 while it is off, besides least .. most
  bool is_json = false;                   // a string that holds one JSON value; empty: none
};

/// A visitor over the members of a config struct. Structs call the public functions, one per member.
class Fields {
 public:
  virtual ~Fields() = default;

  void flag(const char* name, bool& value, const char* help);
  void integer(const char* name, int64_t& value, const char* unit, const char* help, int64_t least = 0,
               int64_t most = kMaxInteger);
  void number(const char* name, double& value, const char* unit, const char* help, double low = -kInfinity,
              double high = kInfinity);
  void text(const char* name, std::string& value, const char* help);
  void choice(const char* name, std::string& value, std::vector<std::string> choices, const char* help);
  /// Bytes, written "70GiB", "1.5MB" or as a plain integer.
  void bytes(const char* name, int64_t& value, const char* help, int64_t least = 0, int64_t most = kMaxInteger);
  /// Lists: every element lies in the range.
  void integers(const char* name, std::vector<int64_t>& value, const char* unit, const char* help, int64_t least = 0,
                int64_t most = kMaxInteger);
  void numbers(const char* name, std::vector<double>& value, const char* unit, const char* help,
               double low = -kInfinity, double high = kInfinity);
  void texts(const char* name, std::vector<std::string>& value, const char* help);
  /// An integer that is -1 while it is off, its default.
  void integer_or_off(const char* name, int64_t& value, const char* unit, const char* help, int64_t least = 0);
  /// Numbers by ids that are not negative, written as a table: `{50256 = -100}` in TOML, `{"50256": -100}` in JSON.
  /// A reader adds to the numbers that are there.
  void numbers_by_id(const char* name, std::map<int64_t, double>& value, const char* help, double low = -kInfinity,
                     double high = kInfinity);
  /// Text that holds one JSON value. Empty text means none. In JSON it is that value itself, or null.
  void json(const char* name, std::string& value, const char* help);
  /// All keys of this section that the calls before did not name, unread; at the root all tables that they did not
  /// name. The caller later reads `keys` into the struct that another key has chosen, which refuses keys that it does
  /// not have.
  void rest(ConfigDocument& keys);

  /// A nested struct, a table of the file. With `stands_for`, a plain value in place of the table sets that member of
  /// it.
  template <class Config>
  void section(const char* name, Config& config, const char* help, const char* stands_for = "") {
    enter(name, help, stands_for);
    config.fields(*this);
    leave();
  }

 protected:
  virtual void visit(const Field& field) = 0;
  virtual void visit_rest(ConfigDocument& keys) = 0;
  virtual void enter(const char* section, const char* help, const char* stands_for) = 0;
  virtual void leave() = 0;
};

}  // namespace colossal
