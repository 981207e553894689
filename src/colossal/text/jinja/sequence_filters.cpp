#include <algorithm>
#include <map>

#include "colossal/text/jinja/characters.h"
#include "colossal/text/jinja/filters.h"
#include "colossal/text/jinja/operators.h"
#include "colossal/text/jinja/print.h"

namespace colossal::text::jinja {
namespace {

/// Computes at once the values that Python generates one by one. A failure is thrown when its position is reached.
template <class Each>
Value generated(Interpreter& interpreter, const std::vector<Value>& values, Each each) {
  std::vector<Value> out;
  std::shared_ptr<const Failure> failure;
  try {
    for (const Value& value : values) {
      interpreter.budget().step();
      each(value, out);
    }
  } catch (const Failure& error) {
    if (error.cause == Cause::Limit) throw;
    failure = std::make_shared<const Failure>(error);
  }
  Value made = interpreter.make(std::move(out), Sequence::Generator);
  made.items()->failure = std::move(failure);
  return made;
}

std::vector<Value> walk_(Interpreter& interpreter, const Value& value) { return walk(interpreter.budget(), value); }

Value list(Interpreter& interpreter, const Value& value, Arguments&) {
  return interpreter.make(walk_(interpreter, value));
}

Value items(Interpreter& interpreter, const Value& value, Arguments&) {
  if (value.undefined()) return interpreter.make({}, Sequence::Generator);
  if (!value.dict()) {
    Value made = interpreter.make({}, Sequence::Generator);
    made.items()->failure = std::make_shared<const Failure>(Cause::Type, "Can only get item pairs from a mapping.");
    return made;
  }
  Arguments none;
  Value pairs = attribute(interpreter, value, "items").object()->call(interpreter, none);
  pairs.items()->kind = Sequence::Generator;
  return pairs;
}

Value join(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_join", arguments, {"d", "attribute"});
  Budget& budget = interpreter.budget();
  const std::string between = bound.has(0) ? str(budget, bound.at(0)) : "";
  const AttributePath path(interpreter, bound.at(1));
  std::string out;
  bool is_first = true;
  for (const Value& item : walk_(interpreter, value)) {
    budget.step();
    budget.take_bytes(static_cast<int64_t>(between.size()));
    if (!is_first) out += between;
    out += str(budget, path.of(item));
    is_first = false;
  }
  return interpreter.make(std::move(out));
}

Value first(Interpreter& interpreter, const Value& value, Arguments&) {
  if (value.is_generator()) {
    Items& generator = *value.items();
    if (generator.walked < generator.values.size()) return generator.values[generator.walked++];
    if (const auto failure = std::move(generator.failure)) throw *failure;
    return make_undefined("No first item, sequence was empty.");
  }
  const std::vector<Value> values = walk_(interpreter, value);
  return values.empty() ? make_undefined("No first item, sequence was empty.") : values.front();
}

void require_reversible(const Value& value) {
  require_defined(value);
  const bool is_known = value.text() || value.dict() || (value.items() && !value.is_generator());
  if (!is_known) fail(Cause::Type, "'", type_name(value), "' object is not reversible");
}

Value last(Interpreter& interpreter, const Value& value, Arguments&) {
  if (!value.undefined()) require_reversible(value);  // undefined counts as an empty sequence
  const std::vector<Value> values = walk_(interpreter, value);
  return values.empty() ? make_undefined("No last item, sequence was empty.") : values.back();
}

Value reverse(Interpreter& interpreter, const Value& value, Arguments&) {
  if (!value.text() && !is_iterable(value)) fail(Cause::Argument, "argument must be iterable");
  std::vector<Value> values = walk_(interpreter, value);
  std::reverse(values.begin(), values.end());
  if (!value.text())
    return interpreter.make(std::move(values), value.is_generator() ? Sequence::List : Sequence::Reversed);
  std::string out;
  for (const Value& character : values) out += character.text()->bytes;
  return make_text(interpreter.budget(), std::move(out), value.text()->markup);
}

/// Sorts by keys, which are compared like tuples.
std::vector<Value> sorted(Interpreter& interpreter, const std::vector<Value>& values,
                          const std::vector<std::vector<Value>>& keys, bool reversed) {
  std::vector<size_t> order(values.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  Budget& budget = interpreter.budget();
  budget.take_bytes(static_cast<int64_t>(values.size() * 2 * sizeof(size_t)));
  const auto is_before = [&](size_t a, size_t b) {
    for (size_t i = 0; i < keys[a].size(); ++i)
      if (!is_equal(budget, keys[a][i], keys[b][i])) return is_less(budget, keys[a][i], keys[b][i]);
    return false;
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return reversed ? is_before(b, a) : is_before(a, b); });
  std::vector<Value> out;
  for (const size_t i : order) out.push_back(values[i]);
  return out;
}

Value sort(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_sort", arguments, {"reverse", "case_sensitive", "attribute"});
  const bool case_sensitive = bound.truth(1, false);
  std::vector<AttributePath> paths;
  const Value attribute = bound.at(2);
  if (attribute.text()) {
    const std::string& names = attribute.text()->bytes;
    for (size_t at = 0; at <= names.size();) {
      const size_t end = std::min(names.find(',', at), names.size());
      paths.emplace_back(interpreter, interpreter.make(names.substr(at, end - at)));
      at = end + 1;
    }
  } else {
    paths.emplace_back(interpreter, attribute);
  }
  const std::vector<Value> values = walk_(interpreter, value);
  std::vector<std::vector<Value>> keys;
  for (const Value& item : values) {
    keys.emplace_back();
    for (const AttributePath& path : paths)
      keys.back().push_back(without_case(interpreter, path.of(item), case_sensitive));
  }
  return interpreter.make(sorted(interpreter, values, keys, bound.truth(0, false)));
}

Value dict_sort(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = bound.has(1) ? bound.text(1) : "key";
  if (by != "key" && by != "value") fail(Cause::Argument, "You can only sort by either \"key\" or \"value\"");
  Arguments none;
  const Value pairs = interpreter.call(attribute(interpreter, value, "items"), none);
  const std::vector<Value> values = walk_(interpreter, pairs);
  std::vector<std::vector<Value>> keys;
  for (const Value& pair : values)
    keys.push_back({without_case(interpreter, pair.items()->values[by == "value"], bound.truth(0, false))});
  return interpreter.make(sorted(interpreter, values, keys, bound.truth(2, false)));
}

Value unique(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_unique", arguments, {"case_sensitive", "attribute"});
  const AttributePath path(interpreter, bound.at(1));
  const bool case_sensitive = bound.truth(0, false);
  Dict seen;
  bool has_undefined = false;  // all undefined values are equal
  return generated(interpreter, walk_(interpreter, value), [&](const Value& item, std::vector<Value>& out) {
    const Value key = without_case(interpreter, path.of(item), case_sensitive);
    require_hashable(key);
    interpreter.budget().step(16);  // the cost of a look-up in a tree
    step_key(interpreter.budget(), key);
    if (key.undefined() ? std::exchange(has_undefined, true) : seen.find(key) != nullptr) return;
    interpreter.budget().take_bytes(3 * sizeof(Value));
    if (!key.undefined()) seen.set(key, Value::none());
    out.push_back(item);
  });
}

Value extreme(Interpreter& interpreter, const Value& value, Arguments& arguments, bool smallest) {
  const Bound bound(smallest ? "do_min" : "do_max", arguments, {"case_sensitive", "attribute"});
  const AttributePath path(interpreter, bound.at(1));
  const std::vector<Value> values = walk_(interpreter, value);
  if (values.empty()) return make_undefined("No aggregated item, sequence was empty.");
  const bool case_sensitive = bound.truth(0, false);
  size_t best = 0;
  Value best_key = without_case(interpreter, path.of(values[0]), case_sensitive);
  for (size_t i = 1; i < values.size(); ++i) {
    Value key = without_case(interpreter, path.of(values[i]), case_sensitive);
    Budget& budget = interpreter.budget();
    if (smallest ? !is_less(budget, key, best_key) : !compare(budget, Comparison::Greater, key, best_key)) continue;
    best = i;
    best_key = std::move(key);
  }
  return values[best];
}

Value min(Interpreter& i, const Value& v, Arguments& a) { return extreme(i, v, a, true); }
Value max(Interpreter& i, const Value& v, Arguments& a) { return extreme(i, v, a, false); }

Value sum(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_sum", arguments, {"attribute", "start"});
  const AttributePath path(interpreter, bound.at(0));
  Value total = bound.at(1, Value::integer(0));
  if (total.text()) fail(Cause::Type, "sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : walk_(interpreter, value)) {
    interpreter.budget().step();
    total = binary(interpreter.budget(), NodeKind::Add, total, path.of(item));
  }
  return total;
}

Value map(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  if (!is_true(value)) return interpreter.make({}, Sequence::Generator);
  if (arguments.positional.empty() && !arguments.named.empty()) {
    const Bound bound("map", arguments, {"attribute", "default"}, 1);
    const AttributePath path(interpreter, bound.at(0));
    const Value otherwise = bound.at(1);
    return generated(interpreter, walk_(interpreter, value), [&](const Value& item, std::vector<Value>& out) {
      out.push_back(path.of(item, otherwise.is_none() ? nullptr : &otherwise));
    });
  }
  if (arguments.positional.empty()) fail(Cause::Argument, "map requires a filter argument");
  const Value name = arguments.positional.front();
  const Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
  return generated(interpreter, walk_(interpreter, value), [&](const Value& item, std::vector<Value>& out) {
    const Budget::Level level(interpreter.budget());  // bounds the recursion of map('map', 'map', ...)
    Arguments own = rest;
    out.push_back(apply_filter(interpreter, name, item, own));
  });
}

Value chosen(Interpreter& interpreter, const Value& value, Arguments& arguments, bool of_attribute, bool wanted) {
  if (!is_true(value)) return interpreter.make({}, Sequence::Generator);
  auto& given = arguments.positional;
  if (of_attribute && given.empty()) fail(Cause::Argument, "Missing parameter for attribute name");
  const AttributePath path(interpreter, of_attribute ? given.front() : Value::none());
  const size_t off = of_attribute;
  const bool has_test = given.size() > off;
  Arguments rest;
  if (has_test) rest = {{given.begin() + static_cast<std::ptrdiff_t>(off) + 1, given.end()}, arguments.named};
  return generated(interpreter, walk_(interpreter, value), [&](const Value& item, std::vector<Value>& out) {
    const Value looked_at = path.of(item);
    Arguments own = rest;
    const bool is_so = is_true(has_test ? apply_test(interpreter, given[off], looked_at, own) : looked_at);
    if (is_so == wanted) out.push_back(item);
  });
}

Value select(Interpreter& i, const Value& v, Arguments& a) { return chosen(i, v, a, false, true); }
Value reject(Interpreter& i, const Value& v, Arguments& a) { return chosen(i, v, a, false, false); }
Value select_attribute(Interpreter& i, const Value& v, Arguments& a) { return chosen(i, v, a, true, true); }
Value reject_attribute(Interpreter& i, const Value& v, Arguments& a) { return chosen(i, v, a, true, false); }

Value batch(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_batch", arguments, {"linecount", "fill_with"}, 1);
  const int64_t size = bound.integer(0, 1);
  std::vector<Value> rows, row;
  for (const Value& item : walk_(interpreter, value)) {
    if (static_cast<int64_t>(row.size()) == size) rows.push_back(interpreter.make(std::exchange(row, {})));
    row.push_back(item);
  }
  if (!row.empty()) {
    if (!bound.is_none(1) && size > static_cast<int64_t>(row.size())) {
      interpreter.budget().take_bytes(size, sizeof(Value));
      row.resize(static_cast<size_t>(size), bound.at(1));
    }
    rows.push_back(interpreter.make(std::move(row)));
  }
  return interpreter.make(std::move(rows), Sequence::Generator);
}

Value slice_(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_slice", arguments, {"slices", "fill_with"}, 1);
  const int64_t slices = bound.integer(0, 1);
  if (slices == 0) fail(Cause::ZeroDivision, "integer division or modulo by zero");
  const std::vector<Value> values = walk_(interpreter, value);
  const auto size = static_cast<int64_t>(values.size());
  std::vector<Value> rows;
  interpreter.budget().take_bytes(std::max<int64_t>(slices, 0), sizeof(Value) + sizeof(Items));
  int64_t at = 0;
  for (int64_t i = 0; i < slices; ++i) {
    interpreter.budget().step();
    const bool is_longer = i < size % slices;
    const int64_t end = at + size / slices + is_longer;
    std::vector<Value> row(values.begin() + at, values.begin() + end);
    if (!bound.is_none(1) && !is_longer) row.push_back(bound.at(1));
    rows.push_back(interpreter.make(std::move(row)));
    at = end;
  }
  return interpreter.make(std::move(rows), Sequence::Generator);
}

Value group_by(Interpreter& interpreter, const Value& value, Arguments& arguments) {
  const Bound bound("do_groupby", arguments, {"attribute", "default", "case_sensitive"}, 1);
  const AttributePath path(interpreter, bound.at(0));
  const bool case_sensitive = bound.truth(2, false);
  const Value otherwise = bound.at(1);
  const Value* fallback = otherwise.is_none() ? nullptr : &otherwise;
  const std::vector<Value> values = walk_(interpreter, value);
  std::vector<std::vector<Value>> keys;
  for (const Value& item : values) {
    keys.push_back({without_case(interpreter, path.of(item, fallback), case_sensitive)});
    if (values.size() > 1) require_defined(keys.back().front());  // an undefined key cannot be compared
  }
  std::vector<Value> groups, members;
  std::optional<Value> key;
  const auto close = [&] {
    if (members.empty()) return;
    const Value grouper = path.of(members.front(), fallback);
    groups.push_back(interpreter.make({grouper, interpreter.make(std::exchange(members, {}))}, Sequence::Tuple));
    groups.back().items()->is_group = true;
  };
  for (const Value& item : sorted(interpreter, values, keys, false)) {
    const Value own = without_case(interpreter, path.of(item, fallback), case_sensitive);
    if (key && !is_equal(interpreter.budget(), *key, own)) close();
    key = own;
    members.push_back(item);
  }
  close();
  return interpreter.make(std::move(groups));
}

}  // namespace

AttributePath::AttributePath(Interpreter& interpreter, const Value& path) : interpreter_(interpreter) {
  if (path.is_none()) return;
  if (!path.text()) {
    parts_.push_back(path);
    return;
  }
  const std::string& names = path.text()->bytes;
  for (size_t at = 0; at <= names.size();) {
    const size_t end = std::min(names.find('.', at), names.size());
    const std::string name = names.substr(at, end - at);
    const bool is_number = is_class(name, Class::Digit) && name.size() < 18 && name[0] >= '0' && name[0] <= '9';
    parts_.push_back(is_number ? Value::integer(std::stoll(name)) : interpreter.make(name));
    at = end + 1;
  }
}

Value AttributePath::of(const Value& item, const Value* otherwise) const {
  Value found = item;
  for (const Value& part : parts_) {
    found = element(interpreter_, found, part);
    if (otherwise && found.undefined()) found = *otherwise;
  }
  return found;
}

Value without_case(Interpreter& interpreter, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.text()) return value;
  interpreter.budget().step_characters(value.text()->bytes.size());
  return interpreter.make(lower(value.text()->bytes));
}

Native find_sequence_filter(std::string_view name) {
  static const std::map<std::string_view, Native> filters{
      {"batch", batch},
      {"dictsort", dict_sort},
      {"first", first},
      {"groupby", group_by},
      {"items", items},
      {"join", join},
      {"last", last},
      {"list", list},
      {"map", map},
      {"max", max},
      {"min", min},
      {"reject", reject},
      {"rejectattr", reject_attribute},
      {"reverse", reverse},
      {"select", select},
      {"selectattr", select_attribute},
      {"slice", slice_},
      {"sort", sort},
      {"sum", sum},
      {"unique", unique},
  };
  const auto found = filters.find(name);
  return found == filters.end() ? nullptr : found->second;
}

}  // namespace colossal::text::jinja
