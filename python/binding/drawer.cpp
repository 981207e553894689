// Pictures and clips drawn in this process. Python waits for them without the GIL.
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "colossal/data/pictures/picture.h"
#include "colossal/serve/local_drawer.h"
#include "parts.h"

namespace colossal::binding {
namespace {

using serve::LocalDrawer;
using serve::LocalDrawing;

/// Makes the PNG file or the pixels that a drawn picture lacks: those of a frame come as pixels.
void complete(diffusion::DrawnPicture& one) {
  if (one.frames > 0)
    one.png = data::encode_png(one.pixels);
  else
    one.pixels = data::decode_picture(one.png, "a drawn picture");
}

/// ([(width, height, seed, sampler, steps, seconds, PNG file, pixels)], lines for the user, frames of a clip or 0 of
/// pictures), or None: not drawn yet
py::object next_pictures(LocalDrawing& drawing, double seconds) {
  std::optional<serve::Drawn> drawn;
  {
    const py::gil_scoped_release released;
    drawn = drawing.next(std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000)));
    if (drawn)
      for (diffusion::DrawnPicture& one : drawn->pictures) complete(one);
  }
  if (!drawn) return py::none();
  py::list pictures;
  int64_t frames = 0;
  for (const diffusion::DrawnPicture& one : drawn->pictures) {
    const data::Picture& picture = one.pixels;
    frames = one.frames;
    pictures.append(py::make_tuple(picture.width, picture.height, one.seed, one.sampler, one.steps, one.seconds,
                                   py::bytes(one.png),
                                   py::bytes(reinterpret_cast<const char*>(picture.rgb.data()), picture.rgb.size())));
  }
  return py::make_tuple(pictures, drawn->notices, frames);
}

}  // namespace

void bind_drawer(py::module_& module) {
  py::class_<LocalDrawing, Held<LocalDrawing>>(module, "Drawing")
      .def("next", &next_pictures, py::arg("seconds"))
      .def("cancel", &LocalDrawing::cancel, WithoutGil());
  py::class_<LocalDrawer, Held<LocalDrawer>>(module, "Drawer")
      .def(py::init([](const std::string& json) {
             return std::make_unique<LocalDrawer>(serve::read_local_drawer_options(json)).release();
           }),
           py::arg("options"), WithoutGil())
      .def(
          "draw",
          [](LocalDrawer& drawer, const std::string& json) {
            return Held<LocalDrawing>(drawer.draw(drawer.options(json)).release());
          },
          py::arg("options"), WithoutGil())
      .def("close", &LocalDrawer::close, WithoutGil())
      .def("notices", &LocalDrawer::notices);
}

}  // namespace colossal::binding
