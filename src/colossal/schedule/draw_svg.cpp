#include <algorithm>
#include <limits>

#include "colossal/base/error.h"
#include "colossal/base/number.h"
#include "colossal/base/svg.h"
#include "colossal/schedule/draw.h"

namespace colossal::schedule {
namespace {

// Sizes of the drawing, in its own units.
constexpr double kWidth = 1200, kLeft = 64, kRight = 16, kTop = 34, kHead = 26, kRow = 20, kGap = 18;
constexpr double kLetterWidth = 6;  // width of a digit in the boxes
constexpr int kShades = 4;          // chunks beyond them reuse the shades

constexpr const char* kStyle =
    "text{font:11px "
    "system-ui,sans-serif;fill:#333}.title{font-size:13px;font-weight:600}.n{font-size:10px;fill:#fff;text-anchor:"
    "middle}"
    ".rank{text-anchor:end}.back{fill:#f1f1ee}.f{fill:#3b6fb6}.b{fill:#c8743a}.w{fill:#5d9a5b}.s1{fill-opacity:.72}.s2{"
    "fill-opacity:.86}"
    ".s3{fill-opacity:.6}.o{fill:#8a8a8a}.m{stroke:#222;stroke-opacity:.25;stroke-width:.7}";

constexpr SvgWriter kSvg(2);

const char* style_of(Action action) {
  switch (action) {
    case Action::Forward:
      return "f";
    case Action::Backward:
    case Action::BackwardInput:
      return "b";
    case Action::BackwardWeight:
      return "w";
    default:
      return "o";
  }
}

/// One timeline whose first row begins at `top`.
class Picture {
 public:
  Picture(const Timeline& timeline, double top, double scale) : timeline_(timeline), top_(top), scale_(scale) {
    origin_ = std::numeric_limits<double>::infinity();
    for (const Event& event : timeline.events)
      if (is_compute(event.step.action)) origin_ = std::min(origin_, event.begin);
  }

  std::string draw() const {
    std::string boxes, messages;
    for (int rank = 0; rank < timeline_.ranks; ++rank) {
      boxes += kSvg.rect("back", kLeft, y(rank), timeline_.makespan * scale_, kRow - 2) +
               kSvg.text("rank", kLeft - 8, y(rank) + 13, concat("rank ", rank));
    }
    for (const Event& event : timeline_.events) {
      if (is_send(event.step.action))
        messages += message(event);
      else if (!is_receive(event.step.action) && event.end > event.begin)
        boxes += box(event);
    }
    return boxes + messages;
  }

 private:
  double x(double time) const { return kLeft + (time - origin_) * scale_; }
  double y(int rank) const { return top_ + rank * kRow; }

  std::string box(const Event& event) const {
    const double width = (event.end - event.begin) * scale_;
    const std::string name = to_string(event.step, timeline_.chunks);
    std::string shade = style_of(event.step.action);
    if (event.step.chunk % kShades > 0) shade += concat(" s", event.step.chunk % kShades);
    const std::string title = concat(name, " on rank ", event.rank, ": ", text_of(event.begin - origin_, 4), " to ",
                                     text_of(event.end - origin_, 4));
    std::string out =
        kSvg.title(title) + kSvg.rect(shade, x(event.begin), y(event.rank), std::max(0.3, width - 0.6), kRow - 2);
    const std::string inside = event.step.micro_batch < 0 ? "" : std::to_string(event.step.micro_batch);
    if (!inside.empty() && width > kLetterWidth * static_cast<double>(inside.size()) + 2) {
      out += kSvg.text("n", x(event.begin) + width / 2, y(event.rank) + 12.5, inside);
    }
    return kSvg.element("g", {}, out) + "\n";
  }

  std::string message(const Event& event) const {
    const double middle = kRow / 2 - 1;
    return kSvg.line("m", x(event.begin), y(event.rank) + middle, x(event.end), y(event.step.peer) + middle) + "\n";
  }

  const Timeline& timeline_;
  const double top_, scale_;
  double origin_;
};

std::string legend() {
  struct Key {
    const char *style, *name;
  };
  constexpr Key keys[] = {{"f", "forward"},
                          {"b", "backward"},
                          {"w", "weight gradients"},
                          {"f s1", "a second chunk"},
                          {"o", "reduce, update"}};
  std::string out;
  double x = kLeft;
  for (const auto& [style, name] : keys) {
    out += kSvg.rect(style, x, 10, 12, 12) + kSvg.text("", x + 17, 20.0, name);
    x += 44 + kLetterWidth * static_cast<double>(std::string(name).size());
  }
  return out;
}

std::string summary(const Timeline& timeline) {
  const double peak =
      timeline.peak_live.empty() ? 0 : *std::max_element(timeline.peak_live.begin(), timeline.peak_live.end());
  return concat(text_of(timeline.makespan, 4), " in all, bubble ", fixed_text(100 * timeline.bubble(), 1), " %, ",
                text_of(peak, 4), " live activations, ", timeline.transfers, " messages");
}

}  // namespace

std::string draw_svg(const Titled& titled) {
  double longest = 0;
  for (const auto& [title, timeline] : titled) longest = std::max(longest, timeline.makespan);
  const double scale = longest > 0 ? (kWidth - kLeft - kRight) / longest : 0;
  std::string out = legend();
  double top = kTop;
  for (const auto& [title, timeline] : titled) {
    out += kSvg.text("title", kLeft, top + 18, title) +
           kSvg.text("", kLeft + 8 * static_cast<double>(title.size()) + 16, top + 18, summary(timeline));
    out += Picture(timeline, top + kHead, scale).draw();
    top += kHead + kRow * timeline.ranks + kGap;
  }
  return kSvg.document(static_cast<int>(kWidth), static_cast<int>(top), kStyle, out);
}

}  // namespace colossal::schedule
