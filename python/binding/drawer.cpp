// Pictures and clips drawn in this process. Python waits for them without the GIL.
#include <pybind11/stl.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "colossal/base/error.h"
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

/// Returns the PNG file of pixels, red, green and blue of each, row by row.
py::bytes png_of(int64_t width, int64_t height, const std::string& rgb) {
  require(width > 0 && height > 0 && static_cast<int64_t>(rgb.size()) == width * height * 3, "draw",
          "a picture must have three bytes for each of its ", width, " x ", height, " pixels: got ", rgb.size());
  return py::bytes(data::encode_png({width, height, {rgb.begin(), rgb.end()}}));
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
  module.def("encode_png", &png_of, py::arg("width"), py::arg("height"), py::arg("rgb"));
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
          [](LocalDrawer& drawer, const std::string& json, const std::map<std::string, std::string>& files) {
            return Held<LocalDrawing>(drawer.draw(drawer.options(json, files), files).release());
          },
          py::arg("options"), py::arg("files"), WithoutGil())
      .def("close", &LocalDrawer::close, WithoutGil())
      .def("notices", &LocalDrawer::notices);
}

}  // namespace colossal::binding
